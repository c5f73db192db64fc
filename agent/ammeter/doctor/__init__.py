"""`ammeter doctor`: checks the machine, the journal folder and the way to the collector."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from ammeter.doctor import collector, folder, limits, machine
from ammeter.doctor.line import Line, fail
from ammeter.environment.settings import DEFAULT_BUDGET, DEFAULT_FLUSH_SECONDS, Settings, disabled, settings
from ammeter.wire import printable

EXIT_OK, EXIT_BROKEN = 0, 1


def main(words: Sequence[str]) -> int:
    """Prints the checks. Exit code: 0 if everything works, 1 if not, 2 wrong call."""
    options = _parse(words)
    lines = list(examine(options.url, options.dir))
    if options.json:
        _print_json(lines)
    else:
        from ammeter.doctor import page

        page.show(lines)
    return EXIT_BROKEN if any(line.level == "fail" for line in lines) else EXIT_OK


def examine(url: str | None = None, dir: str | None = None) -> Iterator[Line]:
    """Yields every line in reading order."""
    yield from machine.lines()
    try:
        chosen = settings(url, dir)
    except (ValueError, OSError) as error:
        yield fail("settings", *_split(str(error)))
        return
    yield _settings(chosen)
    yield from folder.lines(chosen.dir)
    yield from folder.refused_runs(chosen.dir)
    yield from collector.lines(chosen)
    yield from limits.lines()


def _settings(chosen: Settings) -> Line:
    if disabled():
        return Line("warn", "settings", "AMMETER_DISABLE is set: nothing is watched", "unset it to watch")
    changes = []
    if chosen.budget != DEFAULT_BUDGET:
        changes.append(f"readings may use {chosen.budget:g} of the step time")
    if chosen.flush != DEFAULT_FLUSH_SECONDS:
        changes.append(f"close() waits at most {chosen.flush:g} s for the collector")
    return Line("ok", "settings", "; ".join(changes) or "defaults")


def _split(error: str) -> tuple[str, str]:
    """Splits an error into cause and remedy, which Ammeter's errors separate with a semicolon."""
    problem, _, remedy = error.partition("; ")
    return problem, remedy


def _print_json(lines: Sequence[Line]) -> None:
    import msgspec

    failed = any(line.level == "fail" for line in lines)
    result = {"works": not failed, "lines": [msgspec.to_builtins(line) for line in lines]}
    print(printable.json(result))


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ammeter doctor",
        description="Check this machine, the folder of the journals and the connection to the collector.",
        epilog="Exit code: 0 if everything works, 1 if not, 2 for a wrong call.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument("--url", help="address of the collector (default: AMMETER_URL); AMMETER_TOKEN has the token")
    parser.add_argument("--dir", help="folder of the journals (default: AMMETER_DIR, else ~/.ammeter)")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
