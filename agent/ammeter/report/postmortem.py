"""Renders the report as a Markdown post-mortem, with open questions for the reviewers.

Data of the run is escaped, so it appears as text and never as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ammeter.report.markdown import clock, code, number, short, text
from ammeter.report.stream_summary import Tally
from ammeter.report.timeline import Chronicle, Moment, Row, Saved, chronicle
from ammeter.verdicts.causality import gravest
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding

if TYPE_CHECKING:
    from ammeter.report.diagnosis import Report, Told
    from ammeter.wire.columns import View

FIRST, LAST = 40, 20
"""Timeline entries kept from the start and from the end of a longer timeline."""

Views = Mapping[str, Callable[[], "Iterable[View]"]]
"""stream -> function that reads its journal from the beginning; it can be called repeatedly."""


def document(report: Report, views: Views) -> str:
    """Returns the post-mortem of the run as Markdown, ending in a newline."""
    told = report.as_json()
    bad = _bad_step(report)
    lead, others = _streams(report)
    asked = {step for each in _findings(report) for step in (each.first_step, each.opened_step)}
    course = chronicle(views[lead.stream](), asked, bad) if lead else Chronicle()
    for each in others:
        course.moments += chronicle(views[each.stream](), (), None, rows=False).moments
    saved = _last_good(course.saves, bad)
    parts = [
        _head(report, told["run"], told["summary"]),
        _what_happened(report),
        _timeline(report, course),
        _scale(course, told["summary"]),
        _around([*course.earlier, *course.rows], bad),
        _checkpoint(saved, course.saves, bad),
        _ran_on(told["run"], lead),
        _lost(told["summary"], report),
        _checklist(report, told, saved, course),
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _streams(report: Report) -> tuple[Tally | None, list[Tally]]:
    """Returns the stream with the first finding, whose numbers are shown, and the other ranks."""
    ranks = [each for each in report.streams if each.is_rank] or report.streams
    wanted = report.findings[0].ranks[0] if report.findings else 0
    ranks = sorted(ranks, key=lambda each: (each.rank != wanted, -each.steps))
    return (ranks[0], ranks[1:]) if ranks else (None, [])


def _findings(report: Report) -> Iterator[Finding]:
    for told in report.findings:
        yield told.finding
        yield from told.consequences


def _bad_step(report: Report) -> int | None:
    """Returns the step at which the first page-level finding began, else the first finding."""
    grave = [each.first_step for each in _findings(report) if each.severity == "page"]
    every = [told.finding.first_step for told in report.findings]
    return min(grave) if grave else every[0] if every else None


def _head(report: Report, run: dict[str, Any], summary: dict[str, Any]) -> Iterator[str]:
    yield f"# Post-mortem: {text(run['name'] or 'run')} ({text(run['project'])})"
    yield ""
    first = report.findings[0].finding if report.findings else None
    what = f"{text(first.title)}." if first else "No verdict was reached."
    began = f" It began at step {first.first_step}." if first else ""
    yield f"**{what}**{began} The run is {code(run['id'])}, {run['state']}" + (
        f" ({text(run['goodbye'])})." if run["goodbye"] else "."
    )
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield f"| when | {run['started'] or 'unknown'} to {run['ended'] or 'now'}, {summary['seconds']:.1f} s |"
    yield f"| steps | {summary['steps']}, {summary['applied']} applied, {summary['skipped']} skipped |"
    figures = [(text(name), numbers) for name, numbers in summary["losses"].items()]
    figures = [("loss", summary["loss"]), *figures, ("validation loss", summary["val_loss"])]
    for name, numbers in (*figures, ("gradient norm", summary["grad_norm"])):
        if numbers["read"]:
            course = wording.span_text(numbers, run["last_step"], summary["steps"], sampled=name == "gradient norm")
            yield f"| {name} | {course} |"


def _what_happened(report: Report) -> Iterator[str]:
    yield "## What happened"
    if not report.findings:
        yield ""
        yield "Nothing that a verdict knows. What probes saw beside that stands in the timeline."
    for told in report.findings:
        yield ""
        yield from _finding(told)


def _finding(told: Told) -> Iterator[str]:
    finding = told.finding
    over = "" if finding.active else "; it is over"
    again = f" It was so {finding.times} times, first at step {finding.earliest_step}." if finding.times > 1 else ""
    yield f"### {text(finding.title)}"
    yield ""
    yield (
        f"{gravest(finding, told.consequences).capitalize()}, {code(finding.verdict)}. Since step {finding.first_step},"
        f" reached at {finding.opened_step}, last at {finding.last_step}{over}.{again}"
    )
    yield ""
    yield f"- **Cause.** {text(finding.cause)}"
    yield f"- **Fix.** {text(finding.fix)}"
    places = (("line", finding.caller), ("tensor", finding.tensor), ("module", finding.module))
    if where := ", ".join(f"{name} {code(value)}" for name, value in places if value):
        yield f"- **Where.** {where}"
    evidence = {name: value for name, value in finding.evidence.items() if value not in (None, "", [], {})}
    if evidence:
        yield f"- **Evidence.** {'; '.join(f'{text(name)} {short(value)}' for name, value in evidence.items())}"
    for each in told.consequences:
        yield f"- **Led to.** {text(each.title)} ({code(each.verdict)}, since step {each.first_step})"


def _timeline(report: Report, course: Chronicle) -> Iterator[str]:
    yield "## Timeline"
    yield ""
    moments = [*course.moments, *_reached(report, course)]
    moments.sort(key=lambda each: each.time)
    yield "| time (UTC) | step | what |"
    yield "|---|---|---|"
    kept = moments if len(moments) <= FIRST + LAST else [*moments[:FIRST], *moments[-LAST:]]
    for at, each in enumerate(kept):
        if at == FIRST and len(kept) < len(moments):
            yield f"| | | {len(moments) - len(kept)} more lines are left out here |"
        yield f"| {clock(each.time)} | {'' if each.step is None else each.step} | {text(each.said)} |"


def _reached(report: Report, course: Chronicle) -> Iterator[Moment]:
    last = max((each.time for each in course.moments), default=0)
    for told in report.findings:
        for finding in (told.finding, *told.consequences):
            when = course.times.get(finding.opened_step, last)
            said = f"found: {finding.title} ({finding.verdict}, {finding.severity})"
            yield Moment(when, finding.opened_step, said)


def _scale(course: Chronicle, summary: dict[str, Any]) -> Iterator[str]:
    yield "## Loss scale"
    yield ""
    if not summary["scale"]:
        yield "The run has no loss scale."
        return
    first, last = (wording.scale(summary["scale"][name]) for name in ("first", "last"))
    if not course.moves:
        yield f"{first} throughout."
        return
    yield f"{first} at first, {last} at last."
    yield ""
    yield "| steps | changes | from | to |"
    yield "|---|---|---|---|"
    for move in course.moves[: FIRST + LAST]:
        times = f"{'up' if move.up else 'down'}, {wording.count(move.times, 'time')}"
        steps = str(move.first) if move.first == move.last else f"{move.first} to {move.last}"
        yield f"| {steps} | {times} | {wording.scale(move.before)} | {wording.scale(move.after)} |"
    if len(course.moves) > FIRST + LAST:
        yield f"| | {len(course.moves) - FIRST - LAST} more turns | | |"


def _around(rows: list[Row], bad: int | None) -> Iterator[str]:
    yield "## Around the first bad step"
    yield ""
    if bad is None or not rows:
        yield "No step stands out." if bad is None else f"Of the steps around {bad} no row is left."
        return
    yield f"Step {bad} is where it began. The norm is unscaled; `-` is a number that was not read."
    yield ""
    yield "| step | loss | gradient norm | scale | outcome | tensors with the largest norm |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        step = f"**{row.step}**" if row.step == bad else row.step
        outcome = "skipped" if row.skipped else "applied"
        scale = "-" if row.scale is None else wording.scale(row.scale)
        yield f"| {step} | {number(row.loss)} | {number(row.norm)} | {scale} | {outcome} | {_tensors(row)} |"


def _tensors(row: Row) -> str:
    if not row.nonfinite:
        return ", ".join(f"{code(name)} {number(norm)}" for name, norm in row.tensors) or "-"
    last = ", ".join(code(name) for name, _ in row.tensors)
    return f"{wording.count(row.nonfinite, 'tensor')} not finite, the last of them {last}"


def _last_good(saves: list[Saved], bad: int | None) -> Saved | None:
    """Returns the last checkpoint that lacks nothing and was saved before the fault began."""
    good = [each for each in saves if not each.missing and (bad is None or each.step <= bad)]
    return good[-1] if good else None


def _checkpoint(saved: Saved | None, saves: list[Saved], bad: int | None) -> Iterator[str]:
    yield "## Last good checkpoint"
    yield ""
    if saved:
        name = saved.path.rpartition("/")[2]
        when = f"{clock(saved.time)} UTC"
        yield f"{code(saved.path or 'in memory')}, saved at step {saved.step}, {when}. It lacks nothing."
        if name.startswith(".") or "tmp" in name:
            yield ""
            yield "That is the name it was written under; the program seems to rename the file when it is whole."
    elif saves:
        last = saves[-1]
        before = "" if bad is None else f" before step {bad}"
        yield f"None that lacks nothing was saved{before}. The last of {len(saves)}: {text(last.said or last.path)}."
    else:
        yield "No checkpoint was seen. Files that are not written by torch or safetensors are not heard."


def _ran_on(run: dict[str, Any], lead: Tally | None) -> Iterator[str]:
    yield "## What it ran on"
    yield ""
    environment = dict(lead.hello.environment) if lead and lead.hello else {}
    known = {
        "ranks": f"{run['ranks_reporting']} of {run['world_size']}",
        "host": run["host"],
        "device": run["device_model"],
        "precision": run["precision"],
        **{name: value for name, value in sorted(environment.items()) if name != "device"},
    }
    known["driver"] = environment.get("driver") or "not recorded: `nvidia-smi` on the host says it"
    yield "| | |"
    yield "|---|---|"
    for name, value in known.items():
        yield f"| {text(name)} | {value if name == 'driver' else text(value or 'unknown')} |"
    for title, given in (("config", run["config"]), ("tags", run["tags"])):
        for name, value in given.items():
            yield f"| {title} {code(name)} | {text(value)} |"


def _lost(summary: dict[str, Any], report: Report) -> Iterator[str]:
    yield "## What is not known"
    yield ""
    lines = [
        f"{text(reason)}: {counts['steps']} steps and {counts['events']} events are lost"
        for reason, counts in sorted(summary["lost"].items())
    ]
    lines += [f"{verdict} could not be judged: {text(error)}" for verdict, error in sorted(report.faults.items())]
    if all(each["first"] is None for each in (summary["loss"], *summary["losses"].values())):
        lines.append("no finite loss was recorded")
    if summary["grad_norm"]["first"] is None:
        lines.append("no finite gradient norm was read")
    yield from (f"- {line}" for line in lines or ["No record was lost, and every verdict was judged."])


def _checklist(report: Report, told: dict[str, Any], saved: Saved | None, course: Chronicle) -> Iterator[str]:
    run, summary = told["run"], told["summary"]
    module = next((each.module for each in _findings(report) if each.module), None)
    yield "## Checklist"
    yield ""
    yield "What is ticked is answered above. `/runbooks/checklist` of the collector has each step in full."
    yield ""
    ended = run["goodbye"] or run["state"]
    yield f"- [ ] Logs: the process says of its end: {text(ended)}. Read the last hundred lines of its own output."
    yield f"- [{'x' if summary['steps'] else ' '}] Loss-scale history"
    norms = any(row.norm is not None for row in course.rows)
    yield f"- [{'x' if norms else ' '}] Gradient norms around the first bad step"
    yield f"- [{'x' if saved else ' '}] Last good checkpoint" + (
        f": {code(saved.path)}, step {saved.step}" if saved else ""
    )
    device = run["device_model"] or "device unknown"
    asks = "`dmesg | grep -i xid`, ECC errors in `nvidia-smi -q`"
    yield f"- [ ] Hardware and driver: {text(run['host'])}, {text(device)}; {asks}"
    begin = f"from {code(saved.path)}" if saved else "from the beginning"
    yield f"- [ ] Resume in float32 {begin}: does it go through the step where it began?"
    where = f"only {code(module)} in float32" if module else "half of the modules in float32, then half of those"
    yield f"- [ ] Smallest run that shows it: one batch, {where}"
    yield "- [ ] What is changed so that it does not come back, and who does it by when"
