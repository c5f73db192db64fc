"""Runs everything that needs a GPU: the kernels, tests of unchanged training, the cost of a step.

    make gpu [GPU_PYTHON=/path/to/python] [ARGS="--seconds 465 --only kernel,tests --out FILE --dry-run"]

The parts run in the order of their value, as processes with a time limit, in less than eight minutes together. A part
that fails or takes too long keeps what it has measured, and the next one runs. The command prints one table and writes
one file, bench/results/gpu.md, after each part and when it is interrupted. It stops at once if the machine lacks what
every part needs. It exits with 1 if a part failed or a goal was missed.

--dry-run tries the command without a GPU: bench/agent/gpu/stand_in.py takes CUDA's place.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.agent.gpu import parts
from bench.agent.gpu.parts import COMPILE, MACHINE, PARTS, TOTAL_SECONDS
from bench.agent.gpu.rows import DRY, FAILED, LEFT_OUT, MISSED, Row, document, read, terminal
from bench.common.paths import RESULTS, ROOT

COMPILE_WAIT_SECONDS = 25
"""How long compiling in the background may go on after the tests: steps are measured on a machine at rest."""


PASSED = re.compile(r"^tests/.* PASSED .*\n", re.MULTILINE)
"""Lines of the output that the table has already."""


@dataclass
class Benchmark:
    """A run of the command.

    Attributes:
        end: When it has to be over, by time.monotonic().
        sections: Titles and outputs of the parts that ran.
        not_run: Titles of the parts that did not, and why.
    """

    names: list[str]
    out: Path | None
    dry: bool
    end: float
    rows_file: Path
    machine: str = "unknown machine"
    rows: list[Row] = field(default_factory=list)
    sections: list[tuple[str, str]] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)

    def run(self) -> int:
        self.not_run = dict.fromkeys(self.names, "it did not come to it")
        try:
            with interruptible(), ExitStack() as stack:
                self._run_parts(stack)
        except KeyboardInterrupt:
            say("interrupted; what was measured is kept")
        self._write()
        bad = (FAILED,) if self.dry else (FAILED, MISSED)
        say("", *([DRY] if self.dry else []), *terminal(self._all_rows()), "")
        if self.out and self.sections:
            say(f"written to {self.out}")
        return 1 if self.not_run or any(row.result in bad for row in self._all_rows()) else 0

    def _run_parts(self, stack: ExitStack) -> None:
        compiling: subprocess.Popen[bytes] | None = None
        for name in self.names:
            part, left = PARTS[name], self.end - time.monotonic()
            if left < part.least:
                self.not_run[name] = f"{max(0.0, left):.0f} s were left, and it needs {part.least:.0f}"
                say(f"{name}: left out: {self.not_run[name]}")
                continue
            if name == "tests" and "compiled" in self.names:
                compiling = stack.enter_context(
                    parts.process(COMPILE, self._environment(), self._options(PARTS[name].seconds))
                )[0]
            seconds = min(part.seconds, left)
            say(f"== {name}: {part.title} At most {seconds:.0f} of the {left:.0f} s that are left.")
            self._run_part(name, seconds)
            if MACHINE in self.not_run:
                return
            if compiling:
                self._wait_for(compiling)
                compiling = None

    def _run_part(self, name: str, seconds: float) -> None:
        before = time.monotonic()
        try:
            ended = parts.run(name, seconds, self._environment(), self._options(seconds), say)
        finally:
            self.rows = [without_judgement(row) if self.dry else row for row in read(self.rows_file)]
        self.not_run.pop(name)
        if name == MACHINE:
            if ended.failure:
                self.not_run[name] = ended.output.partition("\n")[0] or ended.failure
            else:
                self.machine = ended.output.splitlines()[-1]
        else:
            self.sections.append((PARTS[name].title, PASSED.sub("", ended.output)))
        if ended.failure:
            self.rows.append(Row(name, "the part", ended.failure, "", FAILED))
            with self.rows_file.open("a") as file:
                file.write(self.rows[-1].line)
        say(f"{name}: {ended.failure or 'done'} after {time.monotonic() - before:.0f} s")
        self._write()

    def _wait_for(self, compiling: subprocess.Popen[bytes]) -> None:
        try:
            compiling.wait(min(COMPILE_WAIT_SECONDS, max(0.0, self.end - time.monotonic())))
            code = compiling.returncode
            say(f"compiling in the background: {f'it ended with {code}' if code else 'done'}")
        except subprocess.TimeoutExpired:
            say("compiling in the background took too long and is ended; the part `compiled` does the rest")
            parts.end_group(compiling)

    def _all_rows(self) -> list[Row]:
        return [
            *self.rows,
            *(Row(name, "the part", f"not run: {why}", "", LEFT_OUT) for name, why in self.not_run.items()),
        ]

    def _write(self) -> None:
        missing = "; ".join(f"{name}: {why}" for name, why in self.not_run.items())
        if self.out and self.sections:  # a machine on which nothing ran leaves earlier results alone
            text = document(
                self.machine,
                self._all_rows(),
                self.sections,
                state=f"Not complete. Not run: {missing}." if missing else "",
                dry=self.dry,
            )
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.write_text(text)

    def _environment(self) -> dict[str, str]:
        return parts.environment(self.rows_file, dry=self.dry)

    def _options(self, seconds: float) -> list[str]:
        return ["--seconds", f"{seconds:.0f}", *(["--dry-run"] if self.dry else [])]


def without_judgement(row: Row) -> Row:
    """A dry run reaches no goal and misses none."""
    return replace(row, result="not judged") if row.goal else row


@contextmanager
def interruptible() -> Iterator[None]:
    """A request to end, which a time limit sends, interrupts as a keyboard does."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    began = time.monotonic()
    options = _options(arguments)
    if options.part:
        from bench.agent.gpu.part import run_part

        return run_part(options.part, dry=options.dry_run, seconds=options.seconds)
    names = [name for name in PARTS if name in {MACHINE, *options.only}]
    default = RESULTS / "gpu.md" if len(names) == len(PARTS) else ROOT / "build" / "gpu" / "gpu.md"
    out = options.out or (None if options.dry_run else default)
    if options.dry_run:
        say("DRY RUN: a stand-in takes CUDA's place; no number says anything")
    with tempfile.TemporaryDirectory() as folder:
        benchmark = Benchmark(names, out, options.dry_run, began + options.seconds, Path(folder) / "rows.jsonl")
        return benchmark.run()


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), metavar="PARTS", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=TOTAL_SECONDS, help=f"for everything ({TOTAL_SECONDS:.0f})")
    parser.add_argument("--dry-run", action="store_true", help="try the command where there is no GPU")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="result file (bench/results/gpu.md, with --only build/gpu/gpu.md)"
    )
    parser.add_argument("--part", choices=(*PARTS, COMPILE), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(PARTS):
        parser.error(f"--only names {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if options.dry_run and options.out and RESULTS in options.out.resolve().parents:
        parser.error(f"a dry run has no result; --out must not be in {RESULTS}")
    return options


if __name__ == "__main__":
    sys.exit(main())
