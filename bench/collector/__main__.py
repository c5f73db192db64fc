"""Measures the cost of collecting: values per second of server CPU, bytes on disk, response times.

    make bench-collector [ARGS="--quick | --only ammeter,prometheus | --soak MINUTES | --against CHECKOUT | --write"]

Sends eight ranks of 1,200 columns by HTTP to `ammeter-server serve` with all its verdicts, and the same values to
VictoriaMetrics, Prometheus, MLflow and a table with a row per sample. Takes twenty minutes on a machine without other
load. --soak sends 200 live streams for a while instead. --against compares this checkout's collector with that of
another checkout, such as a git worktree of an older commit. --write puts collector.md and collector.json into
bench/results; `python -m bench.common.readme` then copies the figures into the README.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.collector import against, report, servers, soak
from bench.collector.runner import QUICK, Plan, measure
from bench.common.machine import drop_settings
from bench.common.options import benchmark_parser, make_command, parse_benchmark

SOAK_FILE = "collector-soak.txt"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    drop_settings()
    if options.against:
        return against.main(options.against, quick=options.quick)
    if options.soak:
        return _soak(60 * options.soak, options.write)
    results = measure(QUICK if options.quick else Plan(), options.only.split(","))
    for line in report.terminal_lines(results):
        print(line)
    limits = [] if options.quick or options.only else report.limits(results)
    for limit in limits:
        print(limit)
    if options.write:
        results.soak = _last_soak(options.write)
        report.write(results, options.write, make_command("bench-collector", arguments))
        print(f"written to {options.write}; for the README: python -m bench.common.readme")
    return 0 if all(limit.is_met for limit in limits) else 1


def _soak(seconds: float, write: Path | None) -> int:
    with tempfile.TemporaryDirectory(prefix="ammeter-bench-") as folder:
        server = servers.collector(Path(folder))
        try:
            result = soak.soak(server, seconds)
        finally:
            server.stop()
    for line in result.lines:
        print(line)
    if write:
        write.mkdir(parents=True, exist_ok=True)
        (write / SOAK_FILE).write_text("\n".join(result.lines) + "\n")
        print(f"written to {write / SOAK_FILE}; the next --write copies it into collector.md")
    return 0 if result.passes else 1


def _last_soak(folder: Path) -> list[str]:
    """The lines of the last soak that was written into this folder."""
    path = folder / SOAK_FILE
    return path.read_text().splitlines() if path.is_file() else []


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = benchmark_parser(
        __doc__,
        quick="only checks that everything runs, in about a minute; the numbers are too noisy to keep",
        only="stores whose names contain one of these words",
    )
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="send 200 live streams for this long instead")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="compare with another checkout's collector")
    options = parse_benchmark(parser, arguments)
    if options.against and (options.only or options.write or options.soak):
        parser.error("--against prints its result; leave out --only, --soak and --write")
    return options


if __name__ == "__main__":
    sys.exit(main())
