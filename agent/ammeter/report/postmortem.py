"""Renders the report as a Markdown post-mortem, with open questions for the reviewers.

The template is postmortem.md.jinja. Every value that it prints is escaped, so data of the run appears as text and
never as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from ammeter.report import markdown
from ammeter.report.stream_summary import StreamSummary
from ammeter.report.timeline import Entry, SavedFile, Timeline, timeline_of
from ammeter.verdicts import not_judged
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding

if TYPE_CHECKING:
    from ammeter.report.diagnosis import Report
    from ammeter.wire.columns import View

FIRST_ENTRIES, LAST_ENTRIES = 40, 20
"""Timeline entries kept from the start and from the end of a longer timeline."""

Views = Mapping[str, Callable[[], "Iterable[View]"]]
"""stream -> function that reads its journal from the beginning; it can be called repeatedly."""


def document(report: Report, views: Views) -> str:
    """Returns the post-mortem of the run as Markdown, ending in a newline."""
    facts = report.as_json()
    run, summary = facts["run"], facts["summary"]
    bad_step = _first_bad_step(report)
    lead, others = _streams(report)
    timed = {step for finding in _findings(report) for step in (finding.first_step, finding.opened_step)}
    timeline = timeline_of(views[lead.stream](), timed, bad_step) if lead else Timeline()
    for stream in others:
        timeline.entries += timeline_of(views[stream.stream](), (), None, rows=False).entries
    entries = sorted([*timeline.entries, *_reached(report, timeline)], key=lambda entry: entry.time)
    return _template().render(
        run=run,
        summary=summary,
        report=report,
        columns=_columns(run, summary),
        entries=[*entries[:FIRST_ENTRIES], *entries[FIRST_ENTRIES:][-LAST_ENTRIES:]],
        omitted_entries=max(0, len(entries) - FIRST_ENTRIES - LAST_ENTRIES),
        timeline=timeline,
        rows=[*timeline.earlier, *timeline.rows],
        bad_step=bad_step,
        saved=_last_complete(timeline.saves, bad_step),
        environment=_environment(run, lead),
        missing=list(_missing(report, summary)),
        module=next((finding.module for finding in _findings(report) if finding.module), None),
        first_entries=FIRST_ENTRIES,
        max_scale_changes=FIRST_ENTRIES + LAST_ENTRIES,
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=False,  # it escapes for HTML; finalize escapes for Markdown
        finalize=markdown.text,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "code": markdown.code,
        "clock": markdown.clock,
        "number": markdown.number,
        "evidence": markdown.evidence,
        "scale": wording.scale,
        "counted": wording.count,
    }
    return environment.get_template("postmortem.md.jinja")


def _streams(report: Report) -> tuple[StreamSummary | None, list[StreamSummary]]:
    """Returns the stream with the first finding, whose numbers are shown, and the other ranks."""
    ranks = [stream for stream in report.streams if stream.is_rank] or report.streams
    shown = report.findings[0].ranks[0] if report.findings else 0
    ranks = sorted(ranks, key=lambda stream: (stream.rank != shown, -stream.steps))
    return (ranks[0], ranks[1:]) if ranks else (None, [])


def _findings(report: Report) -> Iterator[Finding]:
    for reported in report.findings:
        yield reported.finding
        yield from reported.consequences


def _first_bad_step(report: Report) -> int | None:
    """Returns the step at which the first page-level finding began, else the first finding."""
    paging = [finding.first_step for finding in _findings(report) if finding.severity == "page"]
    causes = [reported.finding.first_step for reported in report.findings]
    return min(paging) if paging else causes[0] if causes else None


def _columns(run: dict[str, Any], summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields losses, validation loss and gradient norm with their courses."""
    columns = [("loss", summary["loss"]), *summary["losses"].items(), ("validation loss", summary["val_loss"])]
    for name, column in (*columns, ("gradient norm", summary["grad_norm"])):
        if column["read"]:
            sampled = name == "gradient norm"
            yield name, wording.span_text(column, run["last_step"], summary["steps"], sampled=sampled)


def _reached(report: Report, timeline: Timeline) -> Iterator[Entry]:
    """Yields an entry for each finding. Steps without a known time come last."""
    last = max((entry.time for entry in timeline.entries), default=0)
    for finding in _findings(report):
        time = timeline.times.get(finding.opened_step, last)
        yield Entry(time, finding.opened_step, f"found: {finding.title} ({finding.verdict}, {finding.severity})")


def _last_complete(saves: Sequence[SavedFile], bad_step: int | None) -> SavedFile | None:
    """Returns the last complete checkpoint that was saved before the fault began."""
    complete = [saved for saved in saves if not saved.missing and (bad_step is None or saved.step <= bad_step)]
    return complete[-1] if complete else None


def _environment(run: dict[str, Any], lead: StreamSummary | None) -> dict[str, Any]:
    recorded = dict(lead.hello.environment) if lead and lead.hello else {}
    facts = {
        "ranks": f"{run['ranks_reporting']} of {run['world_size']}",
        "host": run["host"],
        "device": run["device_model"],
        "precision": run["precision"],
        **{name: value for name, value in sorted(recorded.items()) if name != "device"},
    }
    unknown = markdown.Markdown("not recorded: `nvidia-smi` on the host prints it")
    return facts | {"driver": recorded.get("driver") or unknown}


def _missing(report: Report, summary: dict[str, Any]) -> Iterator[str]:
    """Yields the data that the report does not have."""
    for reason, counts in sorted(summary["lost"].items()):
        yield f"{reason}: {counts['steps']} steps and {counts['events']} events are lost"
    for verdict, error in sorted(report.faults.items()):
        yield f"{verdict} could not be judged: {error}"
    yield from (sentence.removesuffix(".") for sentence in not_judged.sentences(report.not_judged))
    if all(loss["first"] is None for loss in (summary["loss"], *summary["losses"].values())):
        yield "no finite loss was recorded"
    if summary["grad_norm"]["first"] is None:
        yield "no finite gradient norm was read"
