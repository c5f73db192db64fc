"""Prints the report on a terminal.

Data of a run appears as text, never as markup.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ammeter.verdicts.causality import gravest
from ammeter.verdicts.checkpoints.checkpoint_exposed import is_note
from ammeter.verdicts.framework import wording
from ammeter.wire import printable

if TYPE_CHECKING:
    from ammeter.report.diagnosis import Report, Told

STYLE = {"page": "bold white on red", "ticket": "bold black on yellow"}
NOT_SEEN = {
    "loss": "No loss was recorded, so nobody can say whether it was finite; run.log(loss=...) tells it.",
    "grad_norm": "No gradient was read, so underflow and the origin of a NaN could not be judged.",
}
NEVER_FINITE = {
    "loss": "No finite loss was recorded.",
    "grad_norm": "No finite gradient norm was read, so underflow could not be judged.",
}
"""Used instead of NOT_SEEN after non-finite losses or gradients.

Such values count as neither first nor last.
"""


MIN_SHARE = 0.001
"""The smallest share that is printed as a number."""

LITTLE = 0.01
"""Up to this share of a whole run, the included start cannot mislead a reader."""


def show(report: Report, console: Console | None = None) -> None:
    """Prints the report: run, numbers, findings with cause and fix, and the next step."""
    console = console or Console(highlight=False)
    told = report.as_json()
    run, summary = told["run"], told["summary"]
    console.print(
        Rule(Text(printable.line(f"{run['name'] or 'run'} · {run['project']}"), "bold"), align="left", style="dim")
    )
    facts = _facts(run, summary)
    if told["baseline"]:
        facts.add_row("baseline", Text(printable.line(_beside(told["baseline"]))))
    console.print(facts)
    for finding in report.findings:
        console.print()
        _finding(console, finding)
    console.print()
    seen = _unsaid(report, told["seen"])
    if seen:
        console.print(_seen(seen))
        console.print()
    for line in _end(report, summary, bool(seen)):
        console.print(Text(line), soft_wrap=False)
    console.print()


def _facts(run: dict[str, Any], summary: dict[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _lines(run, summary):
        table.add_row(name, Text(printable.line(text)))
    return table


def _lines(run: dict[str, Any], summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "run", f"{run['id']}, {run['state']}" + (f" ({run['goodbye']})" if run["goodbye"] else "")
    yield "where", ", ".join(str(each) for each in _where(run) if each)
    if run["command"]:
        yield "command", run["command"]
    if run["lives"]:
        yield "lives", "; ".join(_lives(run["lives"]))
    yield "when", f"{run['started'] or 'unknown'} to {run['ended'] or 'now'}, {summary['seconds']:.1f} s"
    steps, skipped = summary["steps"], summary["skipped"]
    share = f" ({wording.percent(skipped / steps)})" if skipped else ""
    yield "steps", f"{steps}, {summary['applied']} applied, {skipped} skipped{share}"
    scale = summary["scale"]
    if scale:
        growths = wording.count(summary["scale_growths"], "growth")
        backoffs = wording.count(summary["scale_backoffs"], "backoff")
        yield "scale", f"{_course(scale)}; {growths}, {backoffs}"
    norm = "gradient norm" if summary["grad_norm_of"] == "run" else f"gradient norm of {summary['grad_norm_of']}"
    figures = (("loss", summary["loss"]), *_named(summary["losses"]), ("validation", summary["val_loss"]))
    for name, numbers in (*figures, (norm, summary["grad_norm"])):
        if numbers["read"]:
            yield name, wording.span_text(numbers, run["last_step"], steps, sampled=name == norm)
    yield "speed", _speed(summary)
    if summary["steps"]:
        yield "our cost", _cost(summary)
    if weights := _weights(summary):
        yield "weights", weights
    if restores := summary["checkpoint_restores"]:
        yield "restores", _restores(restores)
    if summary["nonfinite_steps"]:
        yield "not finite", f"loss or gradients of {wording.count(summary['nonfinite_steps'], 'step')}"
    yield "records lost", _losses(summary["lost"])


def _named(losses: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each loss with its name.

    Losses that may not be the batch's are named after backward().
    """
    for column, numbers in losses.items():
        kind = "loss" if column.startswith("loss@") else "backward() on"
        yield f"{kind}{wording.of_loss(column)}".removesuffix(" on"), numbers


def _beside(baseline: dict[str, Any]) -> str:
    """Describes the comparison with the baseline: speed, memory and metrics."""
    parts = []
    if baseline["speedup"]:
        times = f"{1000 * baseline['seconds']:.3g} ms against {1000 * baseline['baseline_seconds']:.3g} ms"
        parts.append(f"{baseline['speedup']:.2f} times its speed ({times} a {baseline['per']})")
    if baseline["memory_ratio"]:
        parts.append(f"{wording.percent(baseline['memory_ratio'])} of its memory")
    parts += [_metric(each) for each in baseline["metrics"]]
    reasons: dict[str, list[str]] = {}
    for question, why in baseline["not_compared"].items():
        reasons.setdefault(why, []).append(question)
    parts += [f"{wording.listed(questions)} {why}" for why, questions in reasons.items()]
    return ", ".join([baseline["name"], *parts]) if parts else f"{baseline['name']}, nothing in common to compare"


def _metric(metric: dict[str, Any]) -> str:
    """'validation 5.0 % worse at step 39'."""
    name = "validation" if metric["name"] == "val_loss" else metric["name"]
    delta = metric["delta"]
    worse = (
        "not finite" if delta == "Infinity" else f"{wording.percent(abs(delta))} {'worse' if delta > 0 else 'better'}"
    )
    return f"{name} {worse} at step {metric['step']}"


def _lives(lives: list[dict[str, Any]]) -> Iterator[str]:
    """Describes the end of each attempt except the last.

    The rest of the report covers the last.
    """
    yield f"{len(lives)}, for the ranks were started again"
    for each in lives[:-1]:
        step = f"at step {each['last_step']}" if each["last_step"] >= 0 else "before its first step"
        yield f"one ended {step} ({each['goodbye'] or each['state']})"


def _speed(summary: dict[str, Any]) -> str:
    parts, seconds = [], summary["step_seconds"]
    if seconds:
        parts.append(f"{1000 * seconds:.3g} ms a step (median)")
        parts += [
            f"{summary[name]['last'] / seconds:,.0f} {name}/s"
            for name in ("samples", "tokens")
            if _number(summary[name]["last"])
        ]
    if summary["seconds_per_epoch"]:
        parts.append(f"{summary['seconds_per_epoch']:,.4g} s an epoch")
    if _number(summary["low_precision_share"]["last"]) is not None:
        parts.append(f"{wording.percent(summary['low_precision_share']['last'])} of the FLOPs in low precision")
    if _number(summary["host_rss_bytes"]["last"]):
        parts.append(f"{summary['host_rss_bytes']['last'] / 2**30:.2f} GiB resident")
    if summary["device_allocated_bytes"]["last"]:
        parts.append(f"{summary['device_allocated_bytes']['highest'] / 2**30:.2f} GiB on the device")
    return ", ".join(parts) or "not measured"


def _number(value: Any) -> float | None:
    """Returns None for text, the form of a non-finite number in the summary."""
    return None if isinstance(value, str) else value


def _cost(summary: dict[str, Any]) -> str:
    """Describes the overhead as the share of settled steps and the start in seconds.

    The start dominates the share of a short run, so a short run gets no share unless it is small.
    """
    settled, start = summary["overhead_settled_ratio"], f"{summary['overhead_start_seconds']:.2g} s"
    steps = wording.count(summary["overhead_start_steps"], "step")
    if settled is not None:
        return f"{_small(settled)} of the time of settled steps; the start, {steps} in which more is read, took {start}"
    whole = summary["overhead_ratio"]
    if whole is not None and whole <= LITTLE:
        return f"{start}, {_small(whole)} of the run"
    return f"{start} for the start, {steps} in which more is read; too few to say what a settled step costs"


def _small(share: float) -> str:
    return wording.percent(share) if share >= MIN_SHARE else f"less than {wording.percent(MIN_SHARE)}"


def _restores(restores: dict[str, int]) -> str:
    """'3 of 4 checkpoints that were read back are whole; 1 failed'."""
    read = sum(count for outcome, count in restores.items() if outcome != "skipped")
    others = [f"{restores[outcome]} {outcome}" for outcome in ("partial", "failed", "skipped") if restores.get(outcome)]
    whole = f"{restores.get('passed', 0)} of {wording.count(read, 'checkpoint')} that were read back are whole"
    return "; ".join([whole, *others])


def _weights(summary: dict[str, Any]) -> str:
    parts = []
    if _number(summary["update_ratio"]["last"]) is not None:
        parts.append(f"a step moves them by {summary['update_ratio']['last']:.2g} of their norm")
    if _number(summary["lost_updates"]["last"]) is not None:
        parts.append(f"{wording.percent(summary['lost_updates']['last'])} of the updates are lost to rounding")
    return ", ".join(parts)


def _course(scale: dict[str, float]) -> str:
    """Describes the loss scale from the first step to the last."""
    first, last, lowest, highest = (wording.scale(scale[name]) for name in ("first", "last", "lowest", "highest"))
    if lowest == highest:
        return f"{first} throughout"
    return f"{first} at first, {last} at last, between {lowest} and {highest}"


def _where(run: dict[str, Any]) -> Iterator[str]:
    yield f"{run['ranks_reporting']} of {wording.count(run['world_size'], 'rank')}"
    yield run["host"]
    yield run["precision"] or "precision unknown"
    yield f"torch {run['torch_version']}" if run["torch_version"] else ""
    yield run["device_model"] or ""


def _losses(lost: dict[str, dict[str, int]]) -> str:
    told = [
        f"{reason}: {wording.count(counts['steps'], 'step')}, {wording.count(counts['events'], 'event')}"
        if any(counts.values())
        else f"{reason}: nobody counted how many"
        for reason, counts in sorted(lost.items())
    ]
    return "; ".join(told) or "none"


def _finding(console: Console, told: Told) -> None:
    finding = told.finding
    head = Text()
    severity = gravest(finding, told.consequences)
    head.append(f" {severity.upper()} ", STYLE[severity])
    head.append(f" {printable.line(finding.title)}", "bold")
    head.append(f"  {finding.verdict}", "dim")
    console.print(head)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _parts(told):
        table.add_row(name, Text(printable.line(text)))
    console.print(Padding(table, (0, 0, 0, 2)))


def _parts(told: Told) -> Iterator[tuple[str, str]]:
    finding = told.finding
    yield "cause", finding.cause
    yield "do this", finding.fix
    places = (("line", finding.caller), ("tensor", finding.tensor), ("module", finding.module))
    place = ", ".join(f"{name} {value}" for name, value in places if value)
    if place:
        yield "where", place
    over = "" if finding.active else "; it is over"
    again = f"; {finding.times} times, first at {finding.earliest_step}" if finding.times > 1 else ""
    yield (
        "steps",
        f"since {finding.first_step}, seen at {finding.opened_step}, last at {finding.last_step}{over}{again}",
    )
    if len(set(told.ranks)) > 1:
        yield "ranks", ", ".join(str(rank) for rank in sorted(set(told.ranks)))
    for each in told.consequences:
        yield "led to", f"{each.title} ({each.verdict}, {each.severity}, since step {each.first_step})"


def _unsaid(report: Report, seen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the event sentences that no finding covers."""
    said = {each.verdict for told in report.findings for each in (told.finding, *told.consequences)}
    return [each for each in seen if each["verdict"] not in said]


def _seen(told: list[dict[str, Any]]) -> Table:
    """Builds a table of event sentences with their step and line of the program."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for at, each in enumerate(told):
        place = f"{each['caller']}: " if each["caller"] else ""
        table.add_row(
            "also seen" if not at else "", Text(printable.line(f"step {each['step']}, {place}{each['said']}"))
        )
    return table


def _end(report: Report, summary: dict[str, Any], seen: bool) -> Iterator[str]:
    """Yields the closing lines: the next step, or the verdicts that found nothing."""
    for column, line in NOT_SEEN.items():
        if column == "loss" and any(each["first"] is not None for each in summary["losses"].values()):
            continue
        if summary[column]["first"] is None and summary["steps"]:
            yield NEVER_FINITE[column] if summary["nonfinite_steps"] else line
    for verdict, error in sorted(report.faults.items()):
        yield printable.line(f"{verdict} could not be judged ({error}); please report this.")
    if report.unknown:
        yield printable.line(
            f"The baseline {report.unknown!r} that the run names does not lie beside it; nothing was compared."
        )
    for line in report.undelivered:
        yield printable.line(f"The collector does not have all of this run: {line}.")
    yield from _silenced(report)
    yield from _followed(summary)
    yield from _no_step(summary["no_step"], report, seen)
    about_training = [told for told in report.findings if not is_note(told.finding)]
    if about_training:
        first = about_training[0].finding
        many = "" if len(report.findings) == 1 else f" of {len(report.findings)} findings; the first is the one to mend"
        yield f"Next: mend {first.verdict}{many}. Its runbook: ammeter runbook {first.verdict}"
        return
    asked = ", ".join(each.id for each in report.asked if each.id not in report.faults)
    reached = "No verdict on the training was reached" if report.findings else "No verdict was reached"
    yield f"{reached}{', but see above' if seen or report.findings else ''}. What was looked for: {asked}."


def _silenced(report: Report) -> Iterator[str]:
    for found, said in ((True, "and found"), (False, "and not found")):
        names = [name for name, reached in report.silenced.items() if reached is found]
        if names:
            yield f"Silenced, {said}: {', '.join(names)}."


def _followed(summary: dict[str, Any]) -> Iterator[str]:
    """Explains that the order of calls was followed only in some steps.

    Without this line a column of zeros would be ambiguous.
    """
    share, seconds = summary["calls_followed_share"], summary["step_seconds"]
    if share is None or share == 1:
        return
    of = f" of {1000 * seconds:.3g} ms" if seconds else ""
    yield (
        f"The order of calls was followed in {wording.percent(min(share, 0.99))} of the steps: in steps{of} more would"
        " pass the budget. Loss scale and skipped steps are read in every step; nothing of them is missing for that."
    )


def _no_step(reasons: list[str], report: Report, seen: bool) -> Iterator[str]:
    if len(reasons) == 1:
        yield printable.line(f"No step was recorded: {reasons[0]}.")
    elif reasons:
        running = any(each.state == "running" for each in report.streams)
        yet = " yet. Unless the first is still under way, this" if running else ". This"
        yield f"No step was recorded{yet} may be why{', beside what stands above' if seen else ''}:"
        for each in reasons:
            yield printable.line(f"  - {each}")
