"""One cell of the map: runs its training and says whether precision holds in it."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ammeter.journal.find import NoJournal, streams_in, views
from ammeter.preflight import own_process
from ammeter.report.diagnosis import diagnose
from ammeter.verdicts.loss_scale.underflow_shares import lost_shares
from ammeter.wire.columns import BadBlock

MAX_UNDERFLOW = 0.05
"""Share of the gradient below float16's normal numbers from which a cell does not hold. The verdict gradient-underflow
needs more steps than a cell has."""

VARIABLES = {
    **dict.fromkeys(("AMMETER_URL", "AMMETER_DISABLE", "AMMETER_LAUNCH", "AMMETER_TAGS", "RANK", "WORLD_SIZE"), ""),
}
"""Set to nothing in the process of a cell: it is a run of its own, which no collector receives."""


@dataclass(frozen=True)
class Training:
    """What all cells of a map share."""

    factory: str
    steps: int
    seed: int
    lr: float
    timeout: float
    max_difference: float


@dataclass
class Cell:
    """The result of one training.

    Attributes:
        given: the factory's arguments.
        reasons: why precision does not hold, in a few words each; empty if it holds.
        findings: verdicts with their titles.
        refused: why the factory gives no model.
        finished: whether the training ended.
    """

    given: Mapping[str, Any]
    dtype: str
    reasons: list[str] = field(default_factory=list)
    findings: list[dict[str, str]] = field(default_factory=list)
    refused: str = ""
    finished: bool = False
    losses: list[float] = field(default_factory=list)
    seconds: float | None = None
    memory: int | None = None
    underflow: float | None = None
    loss_difference: float | None = None
    time_ratio: float | None = None
    output: str = ""

    @property
    def holds(self) -> bool:
        return not self.reasons

    def as_json(self) -> dict[str, Any]:
        return {
            "given": dict(self.given),
            "dtype": self.dtype,
            "holds": self.holds,
            "reasons": self.reasons,
            "findings": self.findings,
            "losses": [loss if math.isfinite(loss) else repr(loss) for loss in self.losses],
            "loss_difference": self.loss_difference,
            "seconds": self.seconds,
            "time_ratio": self.time_ratio,
            "memory_bytes": self.memory,
            "underflow_share": self.underflow,
            "output": self.output,
        }


def run(training: Training, given: Mapping[str, Any], dtype: str, folder: Path) -> Cell:
    """Trains and reads the journal of the training."""
    cell = Cell(given, dtype)
    arguments: dict[str, Any] = {"spelling": training.factory, "given": given, "dtype": dtype, "folder": str(folder)}
    arguments |= {"steps": training.steps, "seed": training.seed, "lr": training.lr}
    variables = {**VARIABLES, "AMMETER_RUN_ID": str(uuid.uuid4())}
    ended = own_process.run("training", arguments, timeout=training.timeout, variables=variables, quiet=True)
    result = ended.result
    if result is None or "raised" in result:
        cell.reasons.append(_death(ended.death, result))
        cell.output = ended.output
    elif "refused" in result:
        cell.refused = result["refused"]
    else:
        cell.finished, cell.seconds, cell.memory = True, result["seconds"], result["memory"]
        cell.losses = [float(loss) for loss in result["losses"]]
        _read(cell, Path(result["path"]))
    return cell


def compare(cell: Cell, float32: Cell, training: Training) -> None:
    """Adds the differences of a cell from the one in float32 with the same seed."""
    if not (cell.finished and float32.finished):
        return
    if cell.seconds and float32.seconds:
        cell.time_ratio = cell.seconds / float32.seconds
    last, exact = cell.losses[-1], float32.losses[-1]
    if math.isfinite(last) and math.isfinite(exact) and exact:
        cell.loss_difference = (last - exact) / abs(exact)
        if abs(cell.loss_difference) > training.max_difference:
            cell.reasons.append(f"loss {100 * cell.loss_difference:+.1f} %")


def _death(death: str, result: Mapping[str, Any] | None) -> str:
    if result is None:
        return death
    return "out of memory" if result.get("memory") else f"raised {result['raised']}"


def _read(cell: Cell, run_folder: Path) -> None:
    bad = next((step for step, loss in enumerate(cell.losses) if not math.isfinite(loss)), None)
    if bad is not None:
        cell.reasons.append(f"loss {cell.losses[bad]} at step {bad}")
    try:
        report = diagnose(run_folder)
        cell.underflow = _underflow(run_folder)
    except (NoJournal, BadBlock, OSError) as error:
        cell.reasons.append(f"not watched: {error}")
        return
    cell.findings = [
        {"verdict": reported.finding.verdict, "title": reported.finding.title, "cause": reported.finding.cause}
        for reported in report.findings
    ]
    cell.reasons += [finding["verdict"] for finding in cell.findings]
    if cell.underflow is not None and cell.underflow > MAX_UNDERFLOW:
        cell.reasons.append(f"underflow {100 * cell.underflow:.0f} %")


def _underflow(run_folder: Path) -> float | None:
    """The share of the gradient that float16 loses in the last step whose gradients were read, None without one."""
    last = None
    for stream in streams_in(run_folder):
        for view in views(stream):
            sampled = np.flatnonzero(np.isfinite(view.stat("grad.zeros")).any(axis=0)) if len(view) else np.array([])
            if len(sampled):
                last = float(lost_shares(view, sampled[-1:])[0][0])
    return last
