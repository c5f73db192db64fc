"""Texts of zoo.md: the method of the measurement and the meaning of its tables."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from bench.common.machine import cpu_model
from bench.zoo.plan import DEFAULT_BUDGET_STEPS, STEPS
from bench.zoo.scoring import FaultScore, HealthyScore


def method(broken: Sequence[FaultScore], healthy: Sequence[HealthyScore], command: str) -> list[str]:
    archs = sorted({score.case.arch for score in broken})
    seeds = sorted({score.case.seed for score in broken})
    faults = len({score.case.what for score in broken})
    resumed = " FILE held results of earlier runs." if "--go-on" in command else ""
    return [
        f"Written by `{command}` on {cpu_model()}, {os.cpu_count()} cores, torch {torch.__version__}.{resumed}",
        "",
        f"{faults} faults of the reference trainer, on {len(archs)} networks ({', '.join(archs)}), with the seeds"
        f" {', '.join(map(str, seeds))},"
        " which take turns with the precisions and optimizers that the fault can have, and with a"
        " second onset where it"
        f" has one: {len(broken)} broken runs. And {len(healthy)} healthy ones: the trainer as it is,"
        " and programs that resemble broken ones. Each is trained in a process of its own, watched by Ammeter and the"
        " detectors and diagnosed by `ammeter report`. Steps take a few"
        " milliseconds here, so gradients and weights are read more often than a budget of 1 % allows: as often as it"
        " does where steps take half a second and more.",
    ]


def about_the_comparison() -> list[str]:
    return [
        "Noticed: an alarm or finding that the same training without the fault does not have. Named first: for Ammeter,"
        " the report's first finding is the fault's verdict; for the others, the message names"
        " the cause. Part or line:"
        " the broken module, tensor or line, for faults that have one. Anomaly mode makes a step twice as long, so it"
        " ran with the first seed and onset only, in trainings of its own; its traceback of the"
        " forward pass counts as"
        " the line. Norms and losses are compared from the tenth value on.",
    ]


def about_the_faults() -> list[str]:
    return [
        "Later: delay after the first symptom, in steps, or in readings of a column or occurrences of an event for"
        " verdicts that need several. At most: the limit that the trainer's registry of faults"
        " states; 1 where a single"
        " step decides. Faults that take two runs to show are diagnosed after both. Seconds: the median. Seen by:"
        " detectors, with the number of runs in which they raised an alarm. The clock of"
        " `checkpoint-stale` is accelerated, and"
        " `run-stalled` is diagnosed with the clock advanced by twenty minutes.",
    ]


def about_the_budget() -> list[str]:
    return [
        f"Once on each network, with the first seed, in {DEFAULT_BUDGET_STEPS} steps, or {STEPS} where two runs are"
        " compared when both are over: the default settings."
        " Steps later: median and maximum delay after the first symptom; beside it the delay in the runs above, in"
        " which every step is read. A budget is a share of time, so the number of readings per second does not"
        " depend on the duration of a step: a delay of a thousand steps of 5 ms here is one of"
        " ten steps of half a second.",
    ]
