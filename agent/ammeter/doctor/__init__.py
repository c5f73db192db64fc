"""`ammeter doctor`: checks the machine, the journal folder and the way to the collector."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from ammeter.doctor import collector, folder, machine, sight
from ammeter.doctor.line import Line, fail
from ammeter.environment.settings import DEFAULT_BUDGET, DEFAULT_FLUSH, Settings, disabled, settings
from ammeter.wire import printable

FINE, BROKEN = 0, 1


def main(words: Sequence[str]) -> int:
    """Prints the checks. Exit code: 0 if everything works, 1 if not, 2 wrong call."""
    given = _arguments(words)
    lines = list(examine(given.url, given.dir))
    if given.json:
        _print_json(lines)
    else:
        from ammeter.doctor import page

        page.show(lines)
    return BROKEN if any(line.level == "fail" for line in lines) else FINE


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
    yield from folder.kept_back(chosen.dir)
    yield from collector.lines(chosen)
    yield from sight.lines()


def _settings(chosen: Settings) -> Line:
    if disabled():
        return Line("warn", "settings", "AMMETER_DISABLE is set: nothing is watched", "unset it to watch")
    said = []
    if chosen.budget != DEFAULT_BUDGET:
        said.append(f"readings may take {chosen.budget:g} of step time")
    if chosen.flush != DEFAULT_FLUSH:
        said.append(f"close() waits at most {chosen.flush:g} s for the collector")
    return Line("ok", "settings", "; ".join(said) or "all as they are by default")


def _split(error: str) -> tuple[str, str]:
    """Splits an error into cause and remedy, which Ammeter's errors separate with a semicolon."""
    what, _, remedy = error.partition("; ")
    return what, remedy


def _print_json(lines: Sequence[Line]) -> None:
    import msgspec

    failed = any(line.level == "fail" for line in lines)
    told = {"works": not failed, "lines": [msgspec.to_builtins(line) for line in lines]}
    print(printable.json(told))


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ammeter doctor",
        description="Say what this machine and this set-up can and cannot see, and look at the way to the collector.",
        epilog="Exit code: 0 everything will work, 1 something will not.",
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--url", help="the collector; AMMETER_URL otherwise. The token is read from AMMETER_TOKEN")
    parser.add_argument("--dir", help="where journals lie; AMMETER_DIR otherwise, else ~/.ammeter")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
