"""Measures what a bad step costs: the search of its graph, the trial of the operator, and the hooks of the next step.

    python -m bench.agent.bad_steps [--pairs 20] [--quick] [--write [FOLDER]]

All ways are measured in turn, on one thread, in CPU time of the process, which hardly depends on the machine's other
load. The last columns are the largest increase of the process's memory. Healthy steps of a watched training are
compared with those of one whose search is replaced by nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from rich.console import Console

import ammeter
from ammeter.probes.origin import gradient_origin
from ammeter.probes.origin.gradient_origin import GradientOrigin
from ammeter.probes.origin.graph import culprit, trial
from ammeter.probes.origin.graph.nodes import nodes_of
from bench.agent.ammeter_peers import Ammeter
from bench.agent.bad_steps.graphs import Graph, bad_backward, bad_forward, graphs, healthy
from bench.agent.comparison import Sampling, Skipped, compare
from bench.agent.peers import Nothing
from bench.agent.training import SHORT_STEPS
from bench.common.machine import cpu_and_cores, drop_settings
from bench.common.options import benchmark_parser, parse_benchmark
from bench.common.tables import Row, markdown_table, terminal_table

HEADINGS = (
    *("graph", "nodes", "operand", "step ms", "search ms", "search and trial ms", "hooks ms", "hooks and trial ms"),
    *("search and trial MiB", "hooks and trial MiB"),
)
CLEAR_PEAK = "5"
"""Written to clear_refs, it resets the peak of the resident memory: man 5 proc."""

Measured = dict[str, list[float]]


class WithoutSearch(Ammeter):
    """The default preset, whose search of origins in graphs is replaced by nothing."""

    name = "ammeter, without the search"

    def attach(self) -> None:
        self._arm, GradientOrigin.arm = GradientOrigin.arm, lambda *_: None  # type: ignore[method-assign]
        self._disarm, GradientOrigin.disarm = GradientOrigin.disarm, lambda *_: None  # type: ignore[method-assign]
        super().attach()

    def detach(self) -> None:
        super().detach()
        GradientOrigin.arm, GradientOrigin.disarm = self._arm, self._disarm  # type: ignore[method-assign]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    drop_settings()
    torch.set_num_threads(1)
    console, load = Console(), os.getloadavg()[0]
    rows = [HEADINGS, *(row(graph, options.pairs) for graph in graphs())]
    machine = f"{cpu_and_cores()}, torch {torch.__version__}, load before: {load:.1f}"
    conclusion = without_anything_bad(options)
    console.print(terminal_table(rows, machine))
    console.print(conclusion, highlight=False)
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        (options.write / "bad_steps.md").write_text(markdown(rows, machine, conclusion, options))
    return 0


def row(graph: Graph, pairs: int) -> Row:
    """Measures one graph: the median of each way, and its quartiles."""
    with session() as watched:
        origin = GradientOrigin(watched)
        ways: dict[str, Callable[[], Any]] = {
            "step": lambda: _backward(graph.loss(healthy)),
            "search": lambda: _search(graph, tries=False),
            "search and trial": lambda: _search(graph, tries=True),
            "bad step": lambda: _backward(graph.loss(bad_backward)),
            "hooks": lambda: _armed(origin, graph, healthy),
            "hooks and trial": lambda: _armed(origin, graph, bad_backward),
        }
        seconds: Measured = {name: [] for name in ways}
        for pair in range(pairs + 1):
            for name in [*ways] if pair % 2 else [*ways][::-1]:
                gc.collect()
                elapsed = ways[name]()
                if pair:  # the first one fills caches
                    seconds[name].append(1000 * elapsed)
        peaks = {name: peak_mib(ways[name]) for name in ("step", "search and trial", "bad step", "hooks and trial")}
    hooks = [armed - bare for armed, bare in zip(seconds["hooks"], seconds["step"], strict=True)]
    tried = [armed - bare for armed, bare in zip(seconds["hooks and trial"], seconds["bad step"], strict=True)]
    nodes = len(nodes_of(graph.loss(healthy)))
    shown = (seconds["step"], seconds["search"], seconds["search and trial"], hooks, tried)
    more = (peaks["search and trial"] - peaks["step"], peaks["hooks and trial"] - peaks["bad step"])
    return (
        graph.name,
        f"{nodes:,}",
        f"{graph.elements:,}",
        *map(spread, shown),
        *(f"{max(0, mib):.0f}" for mib in more),
    )


def spread(milliseconds: Sequence[float]) -> str:
    low, middle, high = quantiles(milliseconds, n=4) if len(milliseconds) > 1 else [*milliseconds] * 3
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"


def _search(graph: Graph, *, tries: bool) -> float:
    loss = graph.loss(bad_forward)
    original = trial.of_operator
    trial.of_operator = original if tries else lambda *_: None
    try:
        began = time.process_time()
        found = culprit.find_origin(loss, lambda _: "", lambda _: True)
        elapsed = time.process_time() - began
    finally:
        trial.of_operator = original
    if found is None or found["op"] != "LogBackward0" or ("trial" in found) != (tries and _is_small(graph)):
        raise RuntimeError(f"the search did not find the operator: {found}")
    return elapsed


def _is_small(graph: Graph) -> bool:
    return graph.elements <= trial.MAX_ELEMENTS


def _backward(loss: torch.Tensor) -> float:
    began = time.process_time()
    loss.backward()  # type: ignore[no-untyped-call]
    return time.process_time() - began


def _armed(origin: GradientOrigin, graph: Graph, spoil: Callable[[torch.Tensor], torch.Tensor]) -> float:
    loss = graph.loss(spoil)
    origin._armed_steps = 0
    began = time.process_time()
    origin.arm(lambda function: function, origin._session.row)
    loss.backward()  # type: ignore[no-untyped-call]
    origin.disarm()
    elapsed = time.process_time() - began
    found = origin._session.row.raw.pop("gradient_origin", None)
    if (found is not None) != (spoil is bad_backward):
        raise RuntimeError(f"the hooks found {found}")
    return elapsed


@contextmanager
def session() -> Iterator[Any]:
    """A session of a small training, whose steps are not recorded meanwhile."""
    model = torch.nn.Linear(2, 2)
    os.environ["AMMETER_REPRODUCERS"] = "0"
    with tempfile.TemporaryDirectory() as folder:
        run = ammeter.watch(model, torch.optim.SGD(model.parameters()), dir=folder, name="bench")
        try:
            yield run._session
        finally:
            run.close()
            del os.environ["AMMETER_REPRODUCERS"]


def peak_mib(way: Callable[[], Any]) -> float:
    """The largest increase of the resident memory."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # else freed memory counts as resident
    Path("/proc/self/clear_refs").write_text(CLEAR_PEAK)
    before = _resident("VmRSS")
    way()
    return (_resident("VmHWM") - before) / 1024


def _resident(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0])


def without_anything_bad(options: argparse.Namespace) -> str:
    """Compares healthy steps with those of a session without the search."""
    sampling = Sampling(pairs=options.pairs, steps=options.steps, clock=time.process_time)
    ratios = []
    for seed in range(options.repeats):
        outcomes = compare(SHORT_STEPS[0], (Nothing, Ammeter, WithoutSearch), sampling, seed=seed)
        by_name = {outcome.name: outcome for outcome in outcomes if not isinstance(outcome, Skipped)}
        ratios.append(by_name[Ammeter.name].ratio / by_name[WithoutSearch.name].ratio)
    return (
        f"Without a bad step, steps of {SHORT_STEPS[0].precision} take {median(ratios):.3f} times those of a session"
        f" without the search ({len(ratios)} repeats: {min(ratios):.3f} to {max(ratios):.3f})."
    )


def markdown(rows: Sequence[Row], machine: str, conclusion: str, options: argparse.Namespace) -> str:
    lines = [
        "# What a bad step costs",
        "",
        f"{machine}. One thread, CPU time.",
        f"Medians and quartiles of {options.pairs} rounds in turn,",
        f"`python -m bench.agent.bad_steps --pairs {options.pairs} --repeats {options.repeats} --steps {options.steps}"
        " --write`.",
        "",
        "- step: backward() of the healthy loss, to compare with.",
        "- search, search and trial: of the graph of a loss that is NaN, in at most ten such steps and then one in a"
        " hundred.",
        "- hooks, hooks and trial: added to backward() in the step after one with bad gradients, in at most"
        f" {gradient_origin.MAX_ARMED_STEPS} steps of a run.",
        "- MiB: memory that the process needs more than in the same step without them.",
        "",
        *markdown_table(rows),
        "",
        conclusion,
    ]
    return "\n".join(lines) + "\n"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = benchmark_parser(__doc__, quick="only checks that it runs")
    parser.add_argument("--pairs", type=int, default=20, help="rounds of each way, and pairs of blocks (20)")
    parser.add_argument("--steps", type=int, default=250, help="steps in a block (250)")
    parser.add_argument("--repeats", type=int, default=3, help="independent repeats of the healthy steps (3)")
    options = parse_benchmark(parser, arguments)
    if options.quick:
        options.pairs, options.steps, options.repeats = 2, 20, 1
    return options


if __name__ == "__main__":
    sys.exit(main())
