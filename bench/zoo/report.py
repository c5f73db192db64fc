"""What the zoo showed, as people read it: on the terminal, in bench/results/zoo.md and zoo.json."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median

import msgspec
import torch

from bench.common.machine import cpu_model
from bench.common.tables import markdown_table
from bench.zoo.detectors import CAUSE, EYES, PART
from bench.zoo.plan import LONG, STEPS
from bench.zoo.scoring import Healthy, Judged, Limit, own_alarm

HEADINGS = ("watched by", "noticed", "what is wrong named first", "broken part or line named", "healthy runs disturbed")

TRAINCHECK = (
    "TrainCheck (OSDI '25), of 20 silent errors of its own, as published",
    "18 of 20",
    "–",
    "10 of 20",
    "< 2 %",
)
"""Jiang et al., Training with Confidence: Catching Silent Errors in Deep Learning Training with Automated Proactive
Checks. Another set of faults, which we have not run it on."""

OTHERS = ("loss and norm thresholds, as published there: the same 20", "2 of 20", "–", "–", "–")


@dataclass(frozen=True)
class Measured:
    """Everything. seconds: that all trainings took, one after the other. frugal: faults at the default budget."""

    broken: Sequence[Judged]
    healthy: Sequence[Healthy]
    limits: Sequence[Limit]
    seconds: float
    frugal: Sequence[Judged] = ()
    seeds: Sequence[int] = ()


def shown(measured: Measured) -> list[str]:
    """For the terminal: what was missed, and whether the limits hold."""
    lines = [*misses(measured), *alarms(measured)]
    lines += [f"{each.words}: {each.told}, at least {each.wanted}: {each.verdict}" for each in measured.limits]
    if measured.frugal:
        named = _of(sum(each.right for each in measured.frugal), len(measured.frugal))
        lines += [f"missed: {each}" for each in too_frugal(measured)]
        lines.append(f"named first at the default budget: {named}")
    return [*lines, f"{len(measured.broken)} broken and {len(measured.healthy)} healthy runs: {measured.seconds:.0f} s"]


def write(measured: Measured, folder: Path, command: str) -> None:
    """zoo.md and zoo.json in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "zoo.md").write_text(markdown(measured, command))
    plain = {"command": command, "seeds": list(measured.seeds), "limits": measured.limits}
    plain |= {"broken": measured.broken, "healthy": measured.healthy, "frugal": measured.frugal}
    (folder / "zoo.json").write_text(json.dumps(msgspec.to_builtins(plain), indent=1) + "\n")


def markdown(measured: Measured, command: str) -> str:
    missed, disturbed = misses(measured), alarms(measured)
    lines = ["# The zoo: what is found of what is broken on purpose", "", *_story(measured, command), ""]
    lines += [*markdown_table(comparison(measured)), "", *_about_the_comparison(), ""]
    lines += ["## What has to hold", "", *markdown_table(held(measured)), ""]
    lines += ["## Fault by fault", "", *markdown_table(by_fault(measured)), "", *_about_the_faults(), ""]
    lines += ["## What was missed", "", *([f"- {each}" for each in missed] or ["Nothing."]), ""]
    if measured.frugal:
        lines += [
            "## At the default budget",
            "",
            *markdown_table(at_default_budget(measured)),
            "",
            *_about_the_budget(),
            "",
        ]
        lines += [*(f"- {each}" for each in too_frugal(measured)), ""]
    lines += ["## Healthy runs", "", *markdown_table(by_program(measured)), ""]
    lines += ["## False alarms", "", *([f"- {each}" for each in disturbed] or ["None."]), ""]
    return "\n".join(lines)


def comparison(measured: Measured) -> list[tuple[str, ...]]:
    """The table people quote."""
    broken, sound = measured.broken, measured.healthy
    with_part = [each for each in broken if each.culprit is not None]
    ours = (
        "ammeter",
        _of(sum(each.detected for each in broken), len(broken)),
        _of(sum(each.right for each in broken), len(broken)),
        _of(sum(bool(each.culprit) for each in with_part), len(with_part)),
        _of(sum(own_alarm(each) for each in sound), len(sound)),
    )
    return [HEADINGS, ours, *(_of_eye(eye, broken, sound) for eye in EYES), TRAINCHECK, OTHERS]


def _of_eye(eye: str, broken: Sequence[Judged], sound: Sequence[Healthy]) -> tuple[str, ...]:
    """Of those runs that it looked at."""
    broken = [each for each in broken if eye in each.looked]
    sound = [each for each in sound if eye in each.looked]
    with_part = [each for each in broken if each.culprit is not None]
    return (
        EYES[eye],
        _of(sum(eye in each.others for each in broken), len(broken)),
        _of(sum(CAUSE in each.others.get(eye, ()) for each in broken), len(broken)),
        _of(sum(PART in each.others.get(eye, ()) for each in with_part), len(with_part)),
        _of(sum(eye in each.others for each in sound), len(sound)),
    )


def held(measured: Measured) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [(each.words, each.told, each.wanted, each.verdict) for each in measured.limits]
    return [("what", "found", "at least", ""), *rows]


def by_fault(measured: Measured) -> list[tuple[str, ...]]:
    """One row for each fault, all its runs together."""
    heading = (
        "fault",
        "runs",
        "found",
        "named first",
        "part or line",
        "later: median, most",
        "at most",
        "s",
        "seen by",
    )
    rows: list[tuple[str, ...]] = [heading]
    for fault, group in groupby(measured.broken, lambda each: each.case.what):
        runs = list(group)
        after = sorted(each.after for each in runs if each.after is not None)
        seconds = [each.seconds for each in runs if each.seconds is not None]
        pointed = [each.culprit for each in runs if each.culprit is not None]
        rows.append(
            (
                f"`{fault}`",
                str(len(runs)),
                str(sum(each.detected for each in runs)),
                str(sum(each.right for each in runs)),
                f"{sum(map(bool, pointed))} of {len(pointed)}" if pointed else "–",
                f"{median(after):g}, {after[-1]}" if after else "–",
                f"{runs[0].limit} {_unit(runs[0])}" if after else "–",
                f"{median(seconds):.2f}" if seconds else "–",
                ", ".join(_seen(eye, runs) for eye in EYES if any(eye in each.others for each in runs)) or "–",
            )
        )
    return rows


def at_default_budget(measured: Measured) -> list[tuple[str, ...]]:
    """How much later each verdict is reached when 1 % of the step time decides what is read."""
    rows: list[tuple[str, ...]] = [("fault", "named first", "steps later", "where all is read", "s")]
    for fault, group in groupby(measured.frugal, lambda each: each.case.what):
        runs = list(group)
        dense = [each for each in measured.broken if each.case.what == fault]
        rows.append(
            (
                f"`{fault}`",
                f"{sum(each.right for each in runs)} of {len(runs)}",
                _steps(runs),
                _steps(dense),
                ", ".join(f"{each.seconds:.2f}" for each in runs if each.seconds is not None) or "–",
            )
        )
    return rows


def _steps(runs: Sequence[Judged]) -> str:
    """Median and most."""
    steps = sorted(each.steps for each in runs if each.steps is not None)
    return f"{median(steps):g}, {steps[-1]}" if steps else "–"


def by_program(measured: Measured) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("program", "runs", "pages", "tickets", *EYES)]
    for name, group in groupby(sorted(measured.healthy, key=_kind), _kind):
        runs = list(group)
        spoke = [str(sum(eye in each.others for each in runs)) for eye in EYES]
        paged, ticketed = (sum(bool(getattr(each, kind)) for each in runs) for kind in ("pages", "tickets"))
        rows.append((name, str(len(runs)), str(paged), str(ticketed), *spoke))
    return rows


def misses(measured: Measured) -> list[str]:
    """Each broken run that is not as it should be, in a line."""
    return [line for each in measured.broken if (line := _missed(each))]


def too_frugal(measured: Measured) -> list[str]:
    """Those that the default budget does not show within so many steps."""
    return [_missed(each) for each in measured.frugal if not each.right]


def _missed(each: Judged) -> str:
    beside = f" (beside it: {', '.join(each.beside)})" if each.beside else ""
    wrong = []
    if each.trouble:
        wrong.append(each.trouble)
    elif not each.detected:
        wrong.append("nothing was found")
    elif not each.right:
        wrong.append(f"`{each.first}` was named first{beside}")
    if each.detected and each.culprit is False:
        wrong.append(f"it pointed at {each.pointed or 'nothing'}")
    if not each.in_time and not each.case.frugal:
        wrong.append(f"reached {each.after} {_unit(each)} later, not {each.limit}")
    return f"{each.case}: {'; '.join(wrong)}" if wrong else ""


def alarms(measured: Measured) -> list[str]:
    """Each healthy run in which something was found."""
    return [
        f"{each.case}: {', '.join([*each.pages, *each.tickets, *filter(None, [each.trouble])])}"
        for each in measured.healthy
        if own_alarm(each) or each.trouble
    ]


def _story(measured: Measured, command: str) -> list[str]:
    archs = sorted({each.case.arch for each in measured.broken})
    seeds = sorted({each.case.seed for each in measured.broken})
    faults = len({each.case.what for each in measured.broken})
    goes = " FILE held what earlier goes had tried." if "--go-on" in command else ""
    return [
        f"Written by `{command}` on {cpu_model()}, {os.cpu_count()} cores, torch {torch.__version__}.{goes}",
        "",
        f"{faults} faults of the reference trainer, on {len(archs)} networks ({', '.join(archs)}), with the seeds"
        f" {', '.join(map(str, seeds))},"
        " which take turns with the precisions and optimizers that the fault can have, and with a second onset where it"
        f" has one: {len(measured.broken)} broken runs. And {len(measured.healthy)} healthy ones: the trainer as it is,"
        " and programs of the kinds that watchers take for broken. Each is trained for itself, in a process of its own,"
        " watched by Ammeter and judged by `ammeter report`, and the other eyes are in it, too. Steps take a few"
        " milliseconds here, so gradients and weights are read more often than a budget of 1 % allows: as often as it"
        " does where steps take half a second and more.",
    ]


def _about_the_comparison() -> list[str]:
    return [
        "Noticed: it said something that it does not say of the same training without the fault. Named first: of"
        " Ammeter, that the report has the fault's verdict on top; of the others, that their words say what is wrong."
        " Part or line: the module, the tensor or the line that is broken, in those faults that have one. Anomaly mode"
        " makes a step twice as long, so it looked at the first seed and onset only, in trainings for itself; its"
        " traceback of the forward pass counts as the line. A norm or loss is compared from the tenth on.",
    ]


def _about_the_faults() -> list[str]:
    return [
        "Later: than the first symptom, in steps; or in readings of a column or times of an event, where a verdict"
        " waits for so many. At most: what the verdict itself says, see `expected=` in `trainer/faults`; 1 where a"
        " single step decides. Of faults that take two runs to show, these are compared when both are over. Seconds:"
        " the median. Seen by: the other eyes, in so many of the runs that they looked at. The clock of"
        " `checkpoint-stale` goes fast, and `run-stalled` is judged as after twenty minutes.",
    ]


def _about_the_budget() -> list[str]:
    return [
        f"Once on each network, with the first seed, in {LONG} steps, or {STEPS} where two runs are"
        " compared as wholes: what a user has who changes nothing."
        " Steps later: median and most, than the first symptom; beside it those of the runs above, in which everything"
        " is read at every step. A budget is a share of time, so readings are as many in a second, however long a step"
        " is: what comes a thousand steps of 5 ms later here comes ten steps later where one takes half a second.",
    ]


def _unit(each: Judged) -> str:
    return "steps" if each.unit == "steps" else f"of `{each.unit}`"


def _seen(eye: str, runs: Sequence[Judged]) -> str:
    return f"{eye} {sum(eye in each.others for each in runs)} of {sum(eye in each.looked for each in runs)}"


def _kind(each: Healthy) -> str:
    life = f", {each.case.life}" if each.case.life else ""
    return each.case.what or f"the trainer, {each.case.arch}{life}"


def _of(count: int, of: int) -> str:
    return f"{count} of {of} ({100 * count / of:.1f} %)" if of else "–"
