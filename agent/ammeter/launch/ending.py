"""The last lines of `ammeter run`: what was found, and where to read it."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from ammeter import journal
from ammeter.launch.parent import say
from ammeter.launch.witness import Seen
from ammeter.settings import Settings

MOST_BYTES = 64 * 2**20
"""Of a longer journal nobody waits for a diagnosis at the end of his command."""


def tell(chosen: Settings, run: str | None, seen: Seen) -> None:
    """Says on stderr how the run looks."""
    if run is None:
        say(f"ammeter: the ranks have agreed on their run; read it with: ammeter report {_quoted(chosen.dir)}")
        return
    if not seen.streams:
        say("ammeter: nothing was watched: no optimizer of torch made a step in a Python that has ammeter")
        return
    if chosen.url and seen.died:
        _await_delivery(seen.died, chosen.flush)
    folder = seen.streams[0].parent
    page = f"page {chosen.url}/runs/{run}, or " if chosen.url else "read it with: "
    say(f"ammeter: {_found(folder)}; {page}ammeter report {_quoted(folder)}")


def _await_delivery(streams: list[Path], seconds: float) -> None:
    """A container ends with us: what a process that was killed could not wait for, we do."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not all(
        journal.acknowledged(each) >= journal.end_of(each) for each in streams
    ):
        time.sleep(0.05)


def _found(folder: Path) -> str:
    size = sum(path.stat().st_size for path in folder.glob("*/*.seg"))
    if size > MOST_BYTES:
        return f"the run's journal has {size / 2**20:.0f} MiB"
    from ammeter import report
    from ammeter.verdicts import words

    try:
        told = report.diagnose(folder).findings
    except (ValueError, OSError) as error:
        return f"the run's journal cannot be read ({error})"
    if not told:
        return "nothing wrong was found"
    worst = told[0].finding
    more = f" and {words.count(len(told) - 1, 'finding')} more" if len(told) > 1 else ""
    return f"{worst.title} ({worst.verdict}, {worst.severity}){more}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
