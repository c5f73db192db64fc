"""Runs the phases of a plan within its time limit and collects their results."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench.agent.comparison import Outcome, Skipped, compare
from bench.agent.plan import Phase, Plan, phases_of
from bench.agent.report import Results


def measure(plan: Plan, only: Sequence[str], console: Console) -> Results:
    """Runs all phases whose peers have one of these words in their names."""
    phases = phases_of(plan, only)
    words = f"{plan.steps} steps, {plan.other_steps} of other tools, {plan.short_steps} of short ones"
    results = Results(load=os.getloadavg()[0], plan=words, repeats=plan.repeats)
    end = time.monotonic() + 60 * plan.minutes
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=sum(phase.pairs for phase in phases))
        for index, phase in enumerate(phases):
            now = time.monotonic()
            share = phase.expected_ms / sum(later.expected_ms for later in phases[index:])
            label = f"{phase.spec.precision}: {', '.join(peer.name for peer in phase.peers)}"
            progress.update(task, description=label)
            outcomes: list[Outcome | Skipped] = [Skipped(peer.name, "the time was up") for peer in phase.peers]
            if now < end:
                outcomes = _run(phase, now + share * (end - now), lambda: progress.advance(task))
            if not console.is_terminal:
                console.print(f"{label}: {time.monotonic() - now:.1f} s", highlight=False)
            results.add(str(phase.spec), phase.spec.precision, outcomes, short=phase.short)
    results.seconds = time.monotonic() - end + 60 * plan.minutes
    return results


def _run(phase: Phase, deadline: float, on_pair: Callable[[], None]) -> list[Outcome | Skipped]:
    sampling = replace(phase.sampling, deadline=deadline)
    return compare(phase.spec, phase.peers, sampling, seed=phase.seed, on_pair=on_pair)
