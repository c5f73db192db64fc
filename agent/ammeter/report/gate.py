"""`ammeter gate RUN BASELINE`: checks in CI that a run is within limits of another."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ammeter.journal.find import NoJournal, find_baseline, find_runs
from ammeter.report import baseline
from ammeter.report.command import verdict
from ammeter.report.diagnosis import diagnose
from ammeter.verdicts import silence
from ammeter.verdicts.baseline.slower_than_fp32 import MAX_SLOWDOWN
from ammeter.verdicts.baseline.validation_drift import DEFAULT_DELTA
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.run_comparison import RunComparison
from ammeter.wire import printable as shown
from ammeter.wire.columns import BadBlock

WITHIN, WRONG_CALL, OUTSIDE = 0, 2, 3

DEFAULTS = {"slower": 100 * (MAX_SLOWDOWN - 1), "memory": 5.0, "drift": 100 * DEFAULT_DELTA}
"""Percent. For memory it allows for the rounding of the allocator and a few copies."""


MAX_NAMED = 8
"""Differences that are printed with both values."""


@dataclass(frozen=True)
class Check:
    """The check of one limit.

    within: None if the journals do not contain the values; that fails only if the limit was requested.
    """

    name: str
    within: bool | None
    said: str
    asked: bool = False

    @property
    def fails(self) -> bool:
        return self.within is False or (self.within is None and self.asked)


def main(argv: Sequence[str]) -> int:
    """Runs the command. Exit code: 0 within the limits, 3 outside, 2 without journal."""
    given = _arguments(argv)
    try:
        (run,) = find_runs(given.run)
        pair = baseline.pair(run, find_baseline(given.baseline, run), frozenset(_keys(given.ignore)))
        checks = list(check(pair, given))
        checks.append(_findings(run, silence.names(given.silence)))
    except (NoJournal, BadBlock, OSError) as error:
        print(f"ammeter gate: {error}", file=sys.stderr)
        return WRONG_CALL
    failed = [each for each in checks if each.fails]
    if given.json:
        told = {"within": not failed, "checks": [asdict(each) for each in checks], "baseline": pair.as_json()}
        print(shown.json(wording.finite(told)))
    else:
        _show(pair, checks)
    return OUTSIDE if failed else WITHIN


def check(pair: RunComparison, given: argparse.Namespace) -> Iterator[Check]:
    """Yields the checks of all limits except the run's own findings, in order of interest."""
    yield _settings(pair)
    yield _speed(pair, given.slower)
    yield _memory(pair, given.memory)
    yield from _validation(pair, given.drift)
    if given.reproducible:
        yield _reproducible(pair)


def _settings(pair: RunComparison) -> Check:
    """Checks the settings. Only differences that forbid a comparison fail; others are listed."""
    said = [difference.text for difference in pair.forbidding]
    if said:
        more = f", and {len(said) - MAX_NAMED} more" if len(said) > MAX_NAMED else ""
        keys = ", ".join(each.key for each in pair.forbidding)
        return Check("settings", False, f"differ in {keys}: {'; '.join(said[:MAX_NAMED])}{more}")
    named = "".join(f"; {difference.text}" for difference in pair.differences)
    return Check("settings", True, f"the same beside the precision{named}")


def _speed(pair: RunComparison, limit: float | None) -> Check:
    allowed, speed = DEFAULTS["slower"] if limit is None else limit, pair.speed
    if speed is None:
        return Check("speed", None, pair.exclusion("speed") or "too few steps in common", limit is not None)
    said = (
        f"{1000 * speed.run:.3g} ms a {speed.per} against {1000 * speed.baseline:.3g} ms, {_percent(speed.ratio - 1)}"
    )
    return Check("speed", 100 * (speed.ratio - 1) <= allowed, f"{said}; at most {allowed:+g} %", limit is not None)


def _memory(pair: RunComparison, limit: float | None) -> Check:
    allowed, memory = DEFAULTS["memory"] if limit is None else limit, pair.memory
    if memory is None:
        return Check("memory", None, pair.exclusion("memory") or "no device memory was read in both", limit is not None)
    said = f"{memory.run / 2**30:.2f} GiB against {memory.baseline / 2**30:.2f} GiB, {_percent(memory.ratio - 1)}"
    return Check("memory", 100 * (memory.ratio - 1) <= allowed, f"{said}; at most {allowed:+g} %", limit is not None)


def _validation(pair: RunComparison, limit: float | None) -> Iterator[Check]:
    """Checks each validation metric that both runs have. val_loss is called `validation`."""
    allowed = DEFAULTS["drift"] if limit is None else limit
    if not pair.validated:
        said = pair.exclusion("validation") or "no step at which both were validated"
        yield Check("validation", None, said, limit is not None)
    for metric, several in pair.validated.items():
        last = several[-1]
        name = "validation" if metric == "val_loss" else metric
        better = "" if last.better == "lower" else f", {last.better} is better"
        worse = f"{_percent(last.delta)}{' worse' if better else ''}"
        said = f"{last.run:.4g} against {last.baseline:.4g} at step {last.step}, {worse}"
        within = 100 * last.delta <= allowed
        yield Check(name, within, f"{said}; at most {allowed:+g} %{better}", limit is not None)


def _reproducible(pair: RunComparison) -> Check:
    if why := pair.exclusion("validation"):
        return Check("same losses", None, why, asked=True)
    if not pair.common_losses:
        return Check("same losses", None, "no loss that both have", asked=True)
    if pair.first_difference is None:
        return Check(
            "same losses", True, f"equal to the bit over {wording.count(pair.common_losses, 'step')}", asked=True
        )
    step, loss, other = pair.first_difference
    return Check("same losses", False, f"{loss:.9g} against {other:.9g} at step {step}", asked=True)


def _findings(run: Path, quiet: Sequence[str]) -> Check:
    report = diagnose(run, quiet=quiet)
    grave = [told.finding.verdict for told in report.paging]
    hidden = [name for name, reached in report.silenced.items() if reached]
    beside = f"; silenced: {', '.join(hidden)}" if hidden else ""
    return Check("findings", not grave, (", ".join(grave) if grave else "none that wakes a person") + beside)


def _percent(share: float) -> str:
    return f"{100 * share:+.2f} %" if math.isfinite(share) else "not finite"


def _show(pair: RunComparison, checks: Sequence[Check]) -> None:
    print(shown.line(f"{pair.run.name or 'run'} against {pair.baseline.name or 'baseline'}"))
    for each in checks:
        mark = "OUTSIDE" if each.fails else "within" if each.within else "not measured"
        print(shown.line(f"  {mark:<13} {each.name:<12} {each.said}"))


def _keys(given: str) -> list[str]:
    return [each.strip() for each in given.split(",") if each.strip()]


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ammeter gate",
        description="Say whether a run is within limits of its baseline, at the steps that both have.",
        epilog="Exit code: 0 within all limits, 3 outside of one, 2 no journal there. A limit that was given and could"
        " not be measured is outside. Settings have to be the same, and the run free of findings that wake a person.",
    )
    parser.add_argument(
        "run", type=Path, help="a run's folder, or the folder of all runs, which means the one that started last"
    )
    parser.add_argument("baseline", help="a run's folder, or the id or name of a run that lies beside the first one")
    for name, what in (
        ("slower", "how much longer a step may take (%(const)g)"),
        ("memory", "how much more device memory it may take at its peak (%(const)g)"),
        ("drift", "how much worse the last validation may be (%(const)g)"),
    ):
        shown = what.replace("%(const)g", f"{DEFAULTS[name]:g}")
        parser.add_argument(f"--{name}", type=_limit, metavar="PERCENT", help=shown)
    parser.add_argument("--reproducible", action="store_true", help="the losses have to be equal to the bit")
    parser.add_argument("--ignore", default="", metavar="KEYS", help="settings that may differ, between commas")
    parser.add_argument(
        "--silence", action="append", default=[], type=verdict, metavar="VERDICT", help="a verdict that may be reached"
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser.parse_args(argv)


def _limit(text: str) -> float:
    try:
        percent = float(text)
    except ValueError:
        percent = math.nan
    if not math.isfinite(percent):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of percent; write 5, or -20 for a fifth less")
    return percent
