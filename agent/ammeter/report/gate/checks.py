"""The checks of a gate: each compares one measurement of a run and its baseline with a limit."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ammeter.report.diagnosis import diagnose
from ammeter.verdicts.baseline.slower_than_fp32 import MAX_SLOWDOWN
from ammeter.verdicts.baseline.validation_drift import DEFAULT_DELTA
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.run_comparison import RunComparison

DEFAULTS = {"slower": 100 * (MAX_SLOWDOWN - 1), "memory": 5.0, "drift": 100 * DEFAULT_DELTA}
"""Percent. For memory it allows for the rounding of the allocator and a few copies."""


MAX_DIFFERENCES = 8
"""Differences that are printed with both values."""


@dataclass(frozen=True)
class Check:
    """The check of one limit.

    within: None if the journals do not contain the values; that fails only if the limit was requested.
    """

    name: str
    within: bool | None
    text: str
    requested: bool = False

    @property
    def fails(self) -> bool:
        return self.within is False or (self.within is None and self.requested)

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "within": self.within, "said": self.text, "asked": self.requested}


def checks_of(pair: RunComparison, given: argparse.Namespace) -> Iterator[Check]:
    """Yields the checks of all limits except the run's own findings, in order of interest."""
    yield settings_check(pair)
    yield speed_check(pair, given.slower)
    yield memory_check(pair, given.memory)
    yield from _validation(pair, given.drift)
    if given.reproducible:
        yield _reproducible(pair)


def settings_check(pair: RunComparison) -> Check:
    """Checks the settings. Only differences that forbid a comparison fail; others are listed."""
    if pair.forbidding:
        texts = [difference.text for difference in pair.forbidding]
        more = f", and {len(texts) - MAX_DIFFERENCES} more" if len(texts) > MAX_DIFFERENCES else ""
        keys = ", ".join(difference.key for difference in pair.forbidding)
        return Check("settings", False, f"differ in {keys}: {'; '.join(texts[:MAX_DIFFERENCES])}{more}")
    allowed = "".join(f"; {difference.text}" for difference in pair.differences)
    return Check("settings", True, f"the same except for the precision{allowed}")


def speed_check(pair: RunComparison, limit: float | None) -> Check:
    allowed, speed = DEFAULTS["slower"] if limit is None else limit, pair.speed
    if speed is None:
        return Check("speed", None, pair.exclusion("speed") or "too few steps in common", limit is not None)
    times = f"{1000 * speed.run:.3g} ms per {speed.per} against {1000 * speed.baseline:.3g} ms"
    text = f"{times}, {_percent(speed.ratio - 1)}; at most {allowed:+g} %"
    return Check("speed", 100 * (speed.ratio - 1) <= allowed, text, limit is not None)


def memory_check(pair: RunComparison, limit: float | None) -> Check:
    allowed, memory = DEFAULTS["memory"] if limit is None else limit, pair.memory
    if memory is None:
        return Check("memory", None, pair.exclusion("memory") or "no device memory was read in both", limit is not None)
    sizes = f"{memory.run / 2**30:.2f} GiB against {memory.baseline / 2**30:.2f} GiB"
    text = f"{sizes}, {_percent(memory.ratio - 1)}; at most {allowed:+g} %"
    return Check("memory", 100 * (memory.ratio - 1) <= allowed, text, limit is not None)


def _validation(pair: RunComparison, limit: float | None) -> Iterator[Check]:
    """Checks each validation metric that both runs have. val_loss is called `validation`."""
    allowed = DEFAULTS["drift"] if limit is None else limit
    if not pair.validated:
        reason = pair.exclusion("validation") or "no step at which both were validated"
        yield Check("validation", None, reason, limit is not None)
    for metric, validations in pair.validated.items():
        last = validations[-1]
        name = "validation" if metric == "val_loss" else metric
        better = "" if last.better == "lower" else f", {last.better} is better"
        worse = f"{_percent(last.delta)}{' worse' if better else ''}"
        values = f"{last.run:.4g} against {last.baseline:.4g} at step {last.step}"
        text = f"{values}, {worse}; at most {allowed:+g} %{better}"
        yield Check(name, 100 * last.delta <= allowed, text, limit is not None)


def _reproducible(pair: RunComparison) -> Check:
    if reason := pair.exclusion("validation"):
        return Check("same losses", None, reason, requested=True)
    if not pair.common_losses:
        return Check("same losses", None, "no step at which both have a loss", requested=True)
    if pair.first_difference is None:
        return Check(
            "same losses", True, f"bit-identical over {wording.count(pair.common_losses, 'step')}", requested=True
        )
    step, loss, other = pair.first_difference
    return Check("same losses", False, f"{loss:.9g} against {other:.9g} at step {step}", requested=True)


def findings_check(run: Path, silenced: Sequence[str]) -> Check:
    report = diagnose(run, silenced=silenced)
    paging = [reported.finding.verdict for reported in report.paging]
    omitted = [name for name, reached in report.silenced.items() if reached]
    text = ", ".join(paging) if paging else "none that pages"
    return Check("findings", not paging, text + (f"; silenced: {', '.join(omitted)}" if omitted else ""))


def _percent(share: float) -> str:
    return f"{100 * share:+.2f} %" if math.isfinite(share) else "not finite"
