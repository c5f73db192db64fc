"""Runs everything that needs a GPU: tests of unchanged training, cost of a step, cost of reading gradients.

    make gpu [ARGS="--only kernel,tests,cost,compiled | --cpu"]

The parts are processes with a time limit each, together under eight minutes: the kernel that reads all gradients,
compared with a copy of their memory; the tests of tests/gpu; a step of GPT-2 small, bare and watched. The script
writes bench/results/gpu.md after each part, so that a failing part keeps the results of the others. It exits with 1 if
a part failed. --cpu tries the script at tiny sizes and writes a file only where --out names one.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from bench.agent import report
from bench.agent.plan import Plan
from bench.agent.runner import measure
from bench.agent.training import TrainingSpec
from bench.common.paths import RESULTS, ROOT
from bench.common.tables import markdown_table
from bench.common.trainer import Shape
from bench.stats import cpu as stats_cpu
from bench.stats import cuda as stats_cuda
from bench.stats.timing import HEADINGS, gradients

GPT_2_SMALL = Shape(vocabulary=50304, context=1024, layers=12, heads=12, width=768)
TINY = Shape(vocabulary=32, context=8, layers=1, heads=2, width=8)
HOST_BOUND = Shape(vocabulary=96, context=64, layers=2, heads=2, width=64)
"""A step of a few milliseconds, in which the host is the bottleneck."""

COMMAND = [sys.executable, "-m", "bench.agent.gpu"]

MAX_ERROR_CHARS = 4_000
"""Characters of error output that the result keeps from a failed part."""


@dataclass(frozen=True)
class Part:
    """A section of the result. seconds: the time limit."""

    title: str
    seconds: float


PARTS = {
    "kernel": Part("What does reading all gradients cost?", 60),
    "tests": Part("Is watched training the same?", 150),
    "cost": Part("What does a step cost?", 150),
    "compiled": Part("What does a step of a compiled model cost?", 100),
}
RESERVED_SECONDS = 25
"""Time that a part reserves for work that it cannot interrupt."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.part:
        return run_part(options.part, cpu=options.cpu)
    console = Console()
    if not options.cpu and not torch.cuda.is_available():
        console.print("no CUDA device: this benchmark needs a GPU. `make test` and `make bench` need none, and")
        console.print("`make gpu ARGS=--cpu` tries this script at tiny sizes.")
        return 1
    names = [name for name in PARTS if name in options.only]
    out = options.out or (None if options.cpu else RESULTS / "gpu.md")
    sections: list[str] = []
    failed = []
    for name in names:
        with console.status(f"{PARTS[name].title} (at most {PARTS[name].seconds:.0f} s)"):
            failure, output = run_in_process(name, cpu=options.cpu)
        failed += [name] if failure else []
        sections += [f"## {PARTS[name].title}", "", output, ""]
        if failure:
            sections[-1:] = ["", f"**This part failed: {failure}.**", ""]
        console.print(f"{name}: {failure or 'done'}", output, sep="\n", markup=False, highlight=False, soft_wrap=True)
        if out:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(document(sections, cpu=options.cpu))
    if out:
        console.print(f"written to {out}")
    return 1 if failed else 0


def document(sections: Sequence[str], *, cpu: bool) -> str:
    device = "no GPU, tiny sizes: it only shows that the script works" if cpu else torch.cuda.get_device_name()
    where = f"{device}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}. Written by `make gpu`."
    return "\n".join(["# On a GPU", "", where, "", *sections]).rstrip("\n") + "\n"


def run_in_process(name: str, *, cpu: bool, seconds: float | None = None) -> tuple[str, str]:
    """Runs one part in a process group of its own and ends that group.

    Returns:
        The kind of failure, or "" without one; and the part's output.
    """
    seconds = seconds or PARTS[name].seconds
    command = [*COMMAND, "--part", name, *(["--cpu"] if cpu else [])]
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors, cwd=ROOT, start_new_session=True)
        try:
            code = process.wait(timeout=seconds)
            failure = f"it ended with {code}" if code else ""
        except subprocess.TimeoutExpired:
            failure = f"it took longer than {seconds:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        errors.seek(0)
        text, error = output.read().strip(), errors.read()[-MAX_ERROR_CHARS:].strip()
    if failure and error:
        text = f"{text}\n\n```\n{error}\n```".strip()
    return failure, text


def run_part(name: str, *, cpu: bool) -> int:
    """Prints the section of one part."""
    parts: dict[str, Callable[[bool], int]] = {
        "kernel": _kernel,
        "tests": _tests,
        "cost": _cost,
        "compiled": _compiled,
    }
    return parts[name](cpu)


def _tests(cpu: bool) -> int:
    print("```", flush=True)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "GPU_TESTS_ON": "cpu" if cpu else "cuda"}
    options = ("-vv", "--tb=short", "--no-header", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", "tests/gpu", *options]
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    print("```")
    return code


def _cost(cpu: bool) -> int:
    """Prints each result at once: presets, short steps, then the other peers, which may take long."""
    minutes = (PARTS["cost"].seconds - RESERVED_SECONDS) / 60
    long = _long(cpu)
    short = (replace(long[-1], shape=TINY if cpu else HOST_BOUND),)
    _measure(replace(PRESETS, long=long, minutes=0.6 * minutes), cpu=cpu)
    _measure(replace(PRESETS, short=short, minutes=0.25 * minutes), cpu=cpu)
    _measure(replace(PRESETS, others=long[:1], steps=2, minutes=0.15 * minutes), cpu=cpu)
    return 0


def _compiled(cpu: bool) -> int:
    minutes = (PARTS["compiled"].seconds - RESERVED_SECONDS) / 60
    compiled = replace(_long(cpu)[0], compiled=True)
    _measure(replace(PRESETS, long=(compiled,), minutes=minutes), cpu=cpu)
    return 0


PRESETS = Plan(
    long=(),
    short=(),
    others=(),
    repeats=1,
    pairs=6,
    other_pairs=3,
    short_pairs=6,
    steps=20,
    short_steps=100,
    periods=1,
)
"""A young run reads more than a settled one; blocks of 20 steps let a preset train for 160 steps."""


def _long(cpu: bool) -> tuple[TrainingSpec, ...]:
    device, shape, batch = ("cpu", TINY, 2) if cpu else ("cuda", GPT_2_SMALL, 8)
    return tuple(TrainingSpec(precision, shape, batch, device) for precision in ("bf16", "fp16"))


def _measure(plan: Plan, *, cpu: bool) -> None:
    tiny = replace(plan, pairs=3, other_pairs=3, short_pairs=3, steps=2, short_steps=2) if cpu else plan
    results = measure(tiny, ["ammeter", "nothing"] if cpu else [""], Console(quiet=True))
    for section in results.sections:
        print(f"### {section.title}\n", *markdown_table(report.details(section)), "", sep="\n")
    print(*(f"- {remark}" for remark in report.remarks(results)), "", sep="\n", flush=True)


def _kernel(cpu: bool) -> int:
    errors = [] if cpu else stats_cuda.check()
    for error in errors:
        print(f"- wrong: {error}")
    if cpu:
        timings = stats_cpu.time_ways(gradients(5, 100, torch.float32), "5 x 100 float32", cold=False)
    else:
        timings = stats_cuda.time_all()
    print("\n".join(markdown_table([HEADINGS, *(timing.row for timing in timings)])))
    return 1 if errors else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), metavar="PARTS", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--cpu", action="store_true", help="try the script where there is no GPU")
    parser.add_argument("--out", type=Path, metavar="FILE", help="result file (bench/results/gpu.md)")
    parser.add_argument("--part", choices=tuple(PARTS), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(PARTS):
        parser.error(f"--only names {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
