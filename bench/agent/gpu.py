"""Everything that needs a GPU, in one script and one result: is watched training the same, what does it cost there.

    make gpu [ARGS="--only tests,cost,kernel | --cpu"]

Three parts, each a process with a time of its own, together under eight minutes: the tests of tests/gpu; a step of
GPT-2 small, bare and watched; the kernel that reads all gradients against a copy of their memory. Writes
bench/results/gpu.md after each part, so that what one part breaks does not cost the others' results. Ends with 1 when
a part failed. --cpu tries the script itself, at tiny sizes, and keeps nothing unless --out names a file.
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

from bench.agent import __main__ as agent
from bench.agent import report as tables
from bench.agent.training import Kind
from bench.common.paths import RESULTS, ROOT
from bench.common.trainer import Shape
from bench.stats import __main__ as stats

GPT_2_SMALL = Shape(vocabulary=50304, context=1024, layers=12, heads=12, width=768)
TINY = Shape(vocabulary=32, context=8, layers=1, heads=2, width=8)
SHORT = Shape(vocabulary=96, context=64, layers=2, heads=2, width=64)
"""A step of a few milliseconds, which are the host's."""

COMMAND = [sys.executable, "-m", "bench.agent.gpu"]

TAIL = 4_000
"""Characters that are kept of a part that failed."""


@dataclass(frozen=True)
class Part:
    """title: of its section. seconds: until it is ended."""

    title: str
    seconds: float


PARTS = {
    "tests": Part("Is watched training the same?", 200),
    "cost": Part("What does a step cost?", 180),
    "kernel": Part("What does reading all gradients cost?", 75),
}
SPARE = 25
"""Seconds of its time that a part keeps back for what it cannot interrupt."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.part:
        return part(options.part, cpu=options.cpu)
    console = Console()
    if not options.cpu and not torch.cuda.is_available():
        console.print("no CUDA device: there is nothing to run on. `make test` and `make bench` need none, and")
        console.print("`make gpu ARGS=--cpu` tries this script at tiny sizes.")
        return 1
    names = [name for name in PARTS if name in options.only]
    out = options.out or (None if options.cpu else RESULTS / "gpu.md")
    sections: list[str] = []
    failed = []
    for name in names:
        with console.status(f"{PARTS[name].title} (at most {PARTS[name].seconds:.0f} s)"):
            ended, said = run(name, cpu=options.cpu)
        failed += [name] if ended else []
        sections += [f"## {PARTS[name].title}", "", said, ""]
        if ended:
            sections[-1:] = ["", f"**This part failed: {ended}.**", ""]
        console.print(f"{name}: {ended or 'done'}", said, sep="\n", markup=False, highlight=False, soft_wrap=True)
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


def run(name: str, *, cpu: bool, seconds: float | None = None) -> tuple[str, str]:
    """(how it failed, or nothing; what it said) of one part, in a process group that is gone afterwards."""
    seconds = seconds or PARTS[name].seconds
    command = [*COMMAND, "--part", name, *(["--cpu"] if cpu else [])]
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=said, stderr=errors, cwd=ROOT, start_new_session=True)
        try:
            code = process.wait(timeout=seconds)
            ended = f"it ended with {code}" if code else ""
        except subprocess.TimeoutExpired:
            ended = f"it took longer than {seconds:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        errors.seek(0)
        text, error = said.read().strip(), errors.read()[-TAIL:].strip()
    if ended and error:
        text = f"{text}\n\n```\n{error}\n```".strip()
    return ended, text


def part(name: str, *, cpu: bool) -> int:
    """Prints the section of one part."""
    parts: dict[str, Callable[[bool], int]] = {"tests": _tests, "cost": _cost, "kernel": _kernel}
    return parts[name](cpu)


def _tests(cpu: bool) -> int:
    print("```", flush=True)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "GPU_TESTS_ON": "cpu" if cpu else "cuda"}
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-vv", "--tb=short", "-p", "no:cacheprovider"]
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    print("```")
    return code


def _cost(cpu: bool) -> int:
    """What has been measured is said at once: presets, short steps, then the others, which may take long."""
    device, shape, batch = ("cpu", TINY, 2) if cpu else ("cuda", GPT_2_SMALL, 8)
    long = tuple(Kind(precision, shape, batch, device) for precision in ("bf16", "fp16"))
    short = tuple(replace(each, shape=TINY if cpu else SHORT) for each in long)
    seconds = PARTS["cost"].seconds - SPARE
    presets = agent.Plan(long, (), (), 2, 10, 4, 10, 5, 50, 1, 0.45 * seconds / 60)
    steps = replace(presets, long=(), short=short, minutes=0.1 * seconds / 60)
    others = replace(presets, long=(), others=long[:1], steps=2, minutes=0.45 * seconds / 60)
    for plan in (presets, steps, others):
        tiny = replace(plan, pairs=3, other_pairs=3, short_pairs=3, steps=2, short_steps=2) if cpu else plan
        measured = agent.measure(tiny, ["ammeter", "nothing"] if cpu else [""], Console(quiet=True))
        for section in measured.sections:
            print(f"### {section.title}\n", *tables.piped(tables.details(section)), "", sep="\n")
        print(*(f"- {remark}" for remark in tables.remarks(measured)), "", sep="\n", flush=True)
    return 0


def _kernel(cpu: bool) -> int:
    wrong = [] if cpu else stats.check_on_cuda()
    for each in wrong:
        print(f"- wrong: {each}")
    if cpu:
        timed = stats.ways_on_cpu(stats.some(5, 100, torch.float32, "cpu"), "5 x 100 float32", cold=False)
    else:
        timed = stats.on_cuda()
    print("\n".join(tables.piped([stats.HEADINGS, *(each.row for each in timed)])))
    return 1 if wrong else 0


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
