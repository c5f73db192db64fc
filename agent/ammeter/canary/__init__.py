"""`ammeter canary -- COMMAND`: a short run in float32 and one as it is, compared."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ammeter.canary.decision import EXIT_CODES, Decision, decide, obstacle
from ammeter.canary.observed import Observed, observe
from ammeter.canary.runs import Ended, run
from ammeter.environment import canary
from ammeter.environment.settings import disabled, settings, variables
from ammeter.verdicts.framework import wording
from ammeter.wire import printable

DEFAULT_STEPS = 200
"""The speed is compared after 64 steps, and a loss scale of 65536 may need a dozen skipped steps first."""

RUNS = (("float32", "without autocast and GradScaler"), ("amp", "as it is"))

SWITCHED_OFF_BY_CANARY = ("not-as-asked", "scaler-disabled")
"""Verdicts that would blame the program for what the canary has switched off."""


def main(words: Sequence[str]) -> int:
    """Runs the command twice and prints the decision.

    Exit code: 0 ok, 1 differs or slower, 2 not comparable or a wrong call.
    """
    parser = _parser()
    given = parser.parse_args(words)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        parser.error("the command is missing; use: ammeter canary -- python train.py")
    if disabled():
        parser.error("AMMETER_DISABLE is set, so that no run is watched; unset it")
    try:
        folder = settings(None, given.dir).dir / "canary" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    except (ValueError, OSError) as error:
        parser.error(str(error))
    runs, decision = _decided(command, folder, given.steps)
    if given.json:
        print(printable.json(wording.finite(_document(decision, runs))))
    else:
        _show(decision, runs)
    return EXIT_CODES[decision.result]


Seen = tuple[Observed | None, Ended]


def _decided(command: Sequence[str], folder: Path, steps: int) -> tuple[dict[str, Seen], Decision]:
    """Returns the runs by name, and the decision. Without a float32 run, there is no second one."""
    ended = _announced(1, command, folder, steps)
    plain, runs = observe(ended.folder), {}
    runs["float32"] = plain, ended
    reason = obstacle(plain, ended)
    if reason or plain is None:
        return runs, Decision("not comparable", [reason], [])
    ended = _announced(2, command, folder, steps)
    runs["amp"] = amp, _ = observe(ended.folder), ended
    return runs, decide(plain, amp, ended)


def _announced(number: int, command: Sequence[str], folder: Path, steps: int) -> Ended:
    name, what = RUNS[number - 1]
    print(f"ammeter canary: run {number} of 2, {what}, {steps} steps", file=sys.stderr, flush=True)
    switched_off = name == "float32"
    silenced = SWITCHED_OFF_BY_CANARY if switched_off else ()
    return run(command, folder / name, name, steps, _environment(variables(), switched_off), silenced)


def _environment(own: Mapping[str, str], switched_off: bool) -> dict[str, str]:
    """Returns the environment of a run: the same for both, with one hash seed, and without a collector.

    A collector would judge the short runs, and could page somebody.
    """
    fixed = {"PYTHONHASHSEED": own.get("PYTHONHASHSEED", "0")}
    without = ("AMMETER_URL", "AMMETER_RUN_ID", canary.VARIABLE)
    inherited = {name: value for name, value in own.items() if name not in without}
    return inherited | fixed | (canary.switched_off_by(os.getpid()) if switched_off else {})


def _document(decision: Decision, runs: Mapping[str, Seen]) -> dict[str, Any]:
    return {
        "decision": decision.result,
        "reasons": decision.reasons,
        "notes": decision.notes,
        "loss": dataclasses.asdict(decision.loss) if decision.loss else None,
        "grad_norm": dataclasses.asdict(decision.norm) if decision.norm else None,
        "checks": [check.as_json() for check in decision.checks],
        "runs": {name: _run_document(*seen) for name, seen in runs.items()},
    }


def _run_document(observed: Observed | None, ended: Ended) -> dict[str, Any]:
    return {
        "folder": str(observed.folder if observed else ended.folder),
        "steps": observed.steps if observed else 0,
        "stopped": ended.stopped,
        "exit_code": ended.code,
        "precision": observed.history.precision if observed else None,
        "autocast": sorted(observed.autocast) if observed else [],
        "scaled": bool(observed and observed.scaled),
    }


def _show(decision: Decision, runs: Mapping[str, Seen]) -> None:
    print(f"decision: {decision.result}")
    for reason in decision.reasons:
        print(printable.line(f"  {reason}"))
    for note in decision.notes:
        print(printable.line(f"note: {note}"))
    for name, (observed, ended) in runs.items():
        steps = wording.count(observed.steps if observed else 0, "step")
        folder = observed.folder if observed else ended.folder
        print(printable.line(f"{name} run: {steps}, {ended.text}; journal {folder}"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ammeter canary",
        usage="ammeter canary [options] -- COMMAND ...",
        description="Run a command twice for a few steps, first with torch.autocast and torch.amp.GradScaler switched"
        " off and then as it is, and compare loss, gradient norm, speed and device memory.",
        epilog="Exit code: 0 ok, 1 differs or slower, 2 not comparable. What the command writes, it writes twice. Its"
        " output goes to stderr.",
    )
    parser.add_argument(
        "--steps", type=_steps, default=DEFAULT_STEPS, metavar="N", help=f"steps of each run ({DEFAULT_STEPS})"
    )
    parser.add_argument("--dir", help="folder of the journals, in its subfolder canary (AMMETER_DIR, else ~/.ammeter)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="such as: python train.py")
    return parser


def _steps(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps; use 200")
    return int(text)
