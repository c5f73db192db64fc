"""The parts that measure a step of GPT-2 small, bare and watched, in alternating blocks of one training.

A training is built once for each precision, on the device. Ammeter's default preset is measured first and longest,
after as many steps as its first readings take; then its other presets and what people use today for the same questions.
"""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch

from bench.agent import report
from bench.agent.ammeter_peers import Ammeter, SettledDefault, SettledFull, SettledLight
from bench.agent.comparison import Outcome, Sampling, Skipped, compare
from bench.agent.gpu.rows import FAILED, LEFT_OUT, MISSED, OK, Row, emit
from bench.agent.other_peers import AbsmaxHooks, DetectAnomaly, EmptyHooks, Norms
from bench.agent.peers import Nothing, Peer
from bench.agent.training import TINY, Training, TrainingSpec
from bench.common.tables import markdown_table
from bench.common.trainer import Shape

GPT_2_SMALL = Shape(vocabulary=50304, context=1024, layers=12, heads=12, width=768)
HOST_BOUND = Shape(vocabulary=96, context=64, layers=2, heads=2, width=64)
"""A step of a few milliseconds, in which the host is the bottleneck."""

GOAL = 1.005
"""Ratio of a watched and a bare step of Ammeter's default preset."""


@dataclass(frozen=True)
class Group:
    """Peers that are measured together. share: of the time that the part has."""

    spec: TrainingSpec
    peers: Sequence[type[Peer]]
    pairs: int
    steps: int
    share: float


DEFAULT: tuple[type[Peer], ...] = (Nothing, SettledDefault)
PRESETS: tuple[type[Peer], ...] = (SettledLight, SettledFull)
OTHERS: tuple[type[Peer], ...] = (Norms, EmptyHooks, AbsmaxHooks, DetectAnomaly)
OTHERS_COMPILED: tuple[type[Peer], ...] = (Norms,)
"""A compiled model does not call hooks that come after it was compiled."""


def eager(dry: bool, seconds: float) -> int:
    bf16, fp16 = specs(dry)
    short = replace(fp16, shape=TINY if dry else HOST_BOUND)
    groups = [
        *(Group(spec, DEFAULT, pairs=18, steps=12, share=0.3) for spec in (bf16, fp16)),
        *(Group(spec, PRESETS, pairs=4, steps=12, share=0.1) for spec in (bf16, fp16)),
        Group(bf16, OTHERS, pairs=3, steps=5, share=0.1),
        Group(fp16, OTHERS, pairs=3, steps=5, share=0.1),
        Group(short, (Nothing, SettledDefault), pairs=6, steps=100, share=0.06),
    ]
    return measure("cost", groups, seconds, dry=dry)


def compiled(dry: bool, seconds: float) -> int:
    bf16, fp16 = (replace(spec, compiled=True) for spec in specs(dry))
    groups = [
        *(Group(spec, DEFAULT, pairs=18, steps=12, share=0.36) for spec in (bf16, fp16)),
        *(Group(spec, (*PRESETS, *OTHERS_COMPILED), pairs=4, steps=12, share=0.14) for spec in (bf16, fp16)),
    ]
    return measure("compiled", groups, seconds, dry=dry)


def compile_only(dry: bool) -> int:
    """Fills the cache of compiled models while tests run, of bare and of watched ones."""
    for spec in specs(dry):
        training = Training(replace(spec, compiled=True))
        training.calibrate(2)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            peer = Ammeter(training, Path(folder))
            peer.attach()
            training.calibrate(2)
            peer.detach()
            peer.close()
    return 0


def specs(dry: bool) -> tuple[TrainingSpec, TrainingSpec]:
    shape, batch = (TINY, 2) if dry else (GPT_2_SMALL, 8)
    bf16, fp16 = (TrainingSpec(precision, shape, batch, "cuda", tied=True) for precision in ("bf16", "fp16"))
    return bf16, fp16


def measure(part: str, groups: Sequence[Group], seconds: float, *, dry: bool) -> int:
    """Measures group by group; one that fails is named, and the next one runs. 1 if one failed."""
    end = time.monotonic() + seconds
    trainings: dict[TrainingSpec, Training] = {}
    failed = 0
    for index, group in enumerate(groups):
        now = time.monotonic()
        if now > end:
            for peer in group.peers:
                emit(Row(part, what(group.spec, peer.name), "the time was up", "", LEFT_OUT))
            continue
        deadline = now + (end - now) * group.share / sum(later.share for later in groups[index:])
        try:
            measure_group(part, group, trainings, deadline, dry=dry)
        except Exception as error:  # noqa: BLE001 - out of memory, a compiler's error: the other groups remain
            failed = 1
            traceback.print_exc()
            emit(Row(part, f"{group.spec}", " ".join(f"{type(error).__name__}: {error}".split())[:200], "", FAILED))
            trainings.clear()
        if all(later.spec != group.spec for later in groups[index + 1 :]):
            trainings.pop(group.spec, None)
        torch.cuda.empty_cache()
    return failed


def measure_group(
    part: str, group: Group, trainings: dict[TrainingSpec, Training], deadline: float, *, dry: bool
) -> None:
    """Writes the group's rows at once: the next group may take too long. trainings: those built so far."""
    began = time.monotonic()
    if group.spec not in trainings:
        trainings[group.spec] = Training(group.spec)
        trainings[group.spec].calibrate(1)  # compiles
    built = time.monotonic()
    pairs, steps = (2, 1) if dry else (group.pairs, group.steps)
    sampling = Sampling(pairs, steps, deadline=max(built, deadline), periods=0)
    outcomes = compare(group.spec, group.peers, sampling, bare=trainings[group.spec])
    for outcome in outcomes:
        emit(row(part, group, outcome))
    section = report.Section(str(group.spec), group.spec.precision, short=False)
    section.add(outcomes)
    print(f"### {group.spec}, blocks of {steps} steps\n", *markdown_table(report.details(section)), "", sep="\n")
    print(f"- built in {built - began:.1f} s, measured in {time.monotonic() - built:.1f} s.")
    remarks = report.remarks(report.Results(0.0, "", 1, [section]))
    print(*(f"- {remark}" for remark in remarks), "", sep="\n", flush=True)


def row(part: str, group: Group, outcome: Outcome | Skipped) -> Row:
    name = what(group.spec, outcome.name)
    if isinstance(outcome, Skipped):
        return Row(part, name, outcome.reason, "", LEFT_OUT)
    low, middle, high = report.quartiles(outcome.pairs)
    measured = f"{outcome.ratio:.4f} ({len(outcome.pairs)} pairs: {low:.3f} / {middle:.3f} / {high:.3f})"
    measured += f", bare {1e3 * median(outcome.bare):.2f} ms"
    if outcome.name != Ammeter.name or group.spec.shape == HOST_BOUND:
        return Row(part, name, measured)
    return Row(part, name, measured, f"{GOAL}", OK if outcome.ratio <= GOAL else MISSED)


def what(spec: TrainingSpec, name: str) -> str:
    short = ", short steps" if spec.shape == HOST_BOUND else ""
    return f"{spec.precision}{', compiled' if spec.compiled else ''}{short}: {name}"
