"""Command-line options that several benchmarks share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.common.paths import RESULTS


def benchmark_parser(description: str | None, *, quick: str, only: str = "") -> argparse.ArgumentParser:
    """A parser with --quick, --only and --write. quick, only: their help texts; without one there is no --only."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    if only:
        parser.add_argument("--only", default="", metavar="WORDS", help=only)
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS, metavar="FOLDER", help="write the result files")
    return parser


def parse_benchmark(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses the options and refuses to replace the committed results by partial ones."""
    options = parser.parse_args(arguments)
    partial = "--quick" if options.quick else "--only" if getattr(options, "only", "") else ""
    if options.write == RESULTS and partial:
        parser.error(f"{partial} measures too little for bench/results; name another folder")
    return options


def make_command(target: str, arguments: Sequence[str] | None) -> str:
    """The make command line that starts a benchmark with these arguments, as result files quote it."""
    return f'make {target} ARGS="{" ".join(sys.argv[1:] if arguments is None else arguments)}"'
