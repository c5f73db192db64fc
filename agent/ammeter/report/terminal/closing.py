"""The last lines of the report: gaps in its data, and the next step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ammeter.verdicts import not_judged
from ammeter.verdicts.checkpoints.checkpoint_exposed import is_note
from ammeter.verdicts.framework import wording
from ammeter.wire.frames import IMPORTED

if TYPE_CHECKING:
    from ammeter.report.diagnosis import Report
    from ammeter.wire.frames import Hello

UNREAD = {
    "loss": "No loss was recorded, so a NaN or Inf in it could not be found; run.log(loss=...) records it.",
    "grad_norm": "No gradient was read, so underflow and the origin of a NaN could not be judged.",
}
NEVER_FINITE = {
    "loss": "No finite loss was recorded.",
    "grad_norm": "No finite gradient norm was read, so underflow could not be judged.",
}
"""Used instead of UNREAD after non-finite losses or gradients.

Such values count as neither first nor last.
"""

NOT_IN_HISTORY = {
    "loss": "The imported history has no metric that is known as the loss; `ammeter import --loss NAME` names it.",
    "grad_norm": "The imported history has no gradient norm.",
}
"""Used instead of both for a run that Ammeter has not watched."""

MAX_PARTIAL_SHARE = 0.99
"""A share below 1 is not rounded to 100 %."""


def closing_lines(report: Report, summary: dict[str, Any], events: bool) -> Iterator[str]:
    """Yields the closing lines. events: whether the report lists events above them."""
    yield from _unread(summary, is_imported=any(IMPORTED in hello.environment for hello in _hellos(report)))
    for verdict, error in sorted(report.faults.items()):
        yield f"{verdict} could not be judged ({error}); please report this."
    if report.missing_baseline:
        yield f"The run's baseline {report.missing_baseline!r} was not found in the same folder; nothing was compared."
    for reason in report.undelivered:
        yield f"The collector does not have all of this run: {reason}."
    yield from not_judged.sentences(report.not_judged)
    yield from _silenced(report)
    yield from _followed(summary)
    yield from _no_step(summary["no_step"], report, events)
    yield _next_step(report, events)


def _hellos(report: Report) -> Iterator[Hello]:
    return (stream.hello for stream in report.streams if stream.hello is not None)


def _unread(summary: dict[str, Any], is_imported: bool) -> Iterator[str]:
    for column, line in UNREAD.items():
        if column == "loss" and any(loss["first"] is not None for loss in summary["losses"].values()):
            continue
        if summary[column]["first"] is None and summary["steps"]:
            never_finite = NEVER_FINITE[column] if summary["nonfinite_steps"] else line
            yield NOT_IN_HISTORY[column] if is_imported and not summary[column]["read"] else never_finite


def _silenced(report: Report) -> Iterator[str]:
    for is_finding, text in ((True, "and found"), (False, "and not found")):
        names = [name for name, reached in report.silenced.items() if reached is is_finding]
        if names:
            yield f"Silenced, {text}: {', '.join(names)}."


def _followed(summary: dict[str, Any]) -> Iterator[str]:
    """Explains that the order of calls was followed only in some steps.

    Without this line a column of zeros would be ambiguous.
    """
    share, seconds = summary["calls_followed_share"], summary["step_seconds"]
    if share is None or share == 1:
        return
    duration = f" of {1000 * seconds:.3g} ms" if seconds else ""
    yield (
        f"The order of calls was followed in {wording.percent(min(share, MAX_PARTIAL_SHARE))} of the steps: in steps"
        f"{duration} more would exceed the budget. Loss scale and skipped steps are read in every step."
    )


def _no_step(reasons: list[str], report: Report, events: bool) -> Iterator[str]:
    if len(reasons) == 1:
        yield f"No step was recorded: {reasons[0]}."
    elif reasons:
        running = any(stream.state == "running" for stream in report.streams)
        yet = " yet. If the first step is not in progress, possible" if running else ". Possible"
        yield f"No step was recorded{yet} reasons{', besides the events above' if events else ''}:"
        for reason in reasons:
            yield f"  - {reason}"


def _next_step(report: Report, events: bool) -> str:
    """Names the finding to fix first, or states how many verdicts found nothing."""
    about_training = [reported.finding.verdict for reported in report.findings if not is_note(reported.finding)]
    if about_training:
        first = about_training[0]
        many = f", the first of {len(report.findings)} findings" if len(report.findings) > 1 else ""
        return f"Next: fix {first}{many}. Its runbook: ammeter runbook {first}"
    reached = "No verdict on the training was reached" if report.findings else "No verdict was reached"
    judged, applicable = len(report.judged), wording.count(len(report.evaluated), "verdict")
    share = (
        f"All {applicable} were judged" if judged == len(report.evaluated) else f"{judged} of {applicable} were judged"
    )
    return f"{reached}{', but see above' if events or report.findings else ''}. {share}; --json names them."
