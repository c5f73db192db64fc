"""The last lines of `ammeter run`: what was found, and where to read it."""

from __future__ import annotations

import hashlib
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ammeter import journal
from ammeter.environment.settings import Settings
from ammeter.launcher.exit_watcher import Seen
from ammeter.launcher.supervisor import say
from ammeter.redaction import text

if TYPE_CHECKING:
    from ammeter.report.stream_summary import StreamSummary

MAX_WORDS = 200
"""Length limit of an error's message; the program has already printed all of it."""

MAX_BYTES = 64 * 2**20
"""A longer journal is not diagnosed, because users should not wait for that at the end of their command."""


def tell(chosen: Settings, run: str | None, seen: Seen, why: Callable[[], list[str]]) -> None:
    """Prints on stderr the state of the run, or why no run was watched."""
    if run is None:
        say(f"ammeter: the ranks have agreed on their run; read it with: ammeter report {_quoted(chosen.dir)}")
        return
    if not seen.streams:
        say("\n".join(f"ammeter: nothing was watched: {each}" for each in why()))
        return
    if chosen.url and seen.died:
        _await_delivery(seen.died, chosen.flush)
    folder = seen.streams[0].parent
    page = f"page {text(chosen.url, 1000)}/runs/{run}, or " if chosen.url else "read it with: "
    found, notes = _found(folder)
    say(f"ammeter: {found}; {page}ammeter report {_quoted(folder)}")
    for note in notes:
        if _is_new(chosen.dir, note):
            say(f"ammeter: said once: {note.words}")


def _await_delivery(streams: list[Path], seconds: float) -> None:
    """Waits for the delivery of streams of killed processes, which could not wait themselves.

    A container, and the shipper in it, ends with this process.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not all(
        journal.acknowledged(each) >= journal.end_of(each) for each in streams
    ):
        time.sleep(0.05)


@dataclass(frozen=True)
class Note:
    """An observation about a project, not about this run. key: its subject."""

    key: str
    words: str


def _found(folder: Path) -> tuple[str, list[Note]]:
    """Returns a short description of the findings, and notes to print beside it."""
    size = sum(path.stat().st_size for path in folder.glob("*/*.seg"))
    if size > MAX_BYTES:
        return f"the run's journal has {size / 2**20:.0f} MiB", []
    from ammeter.report import diagnosis
    from ammeter.report import run_summary as overall
    from ammeter.verdicts.checkpoints.checkpoint_exposed import is_note
    from ammeter.verdicts.framework import wording as words

    try:
        diagnosed = diagnosis.diagnose(folder)
    except (ValueError, OSError) as error:
        return f"the run's journal cannot be read ({error})", []
    project = overall.run_of(diagnosed.streams)["project"]
    noted = [each.finding for each in diagnosed.findings if is_note(each.finding)]
    notes = [Note(f"{each.verdict} {project}", f"{each.cause} ({each.verdict})") for each in noted]
    told = [each for each in diagnosed.findings if not is_note(each.finding)]
    hidden = [name for name, reached in diagnosed.silenced.items() if reached]
    broken = _broken_off(diagnosed.streams)
    if not told:
        beside = f" beside what is silenced: {', '.join(hidden)}" if hidden else ""
        return (
            f"{broken}; nothing else wrong was found{beside}" if broken else f"nothing wrong was found{beside}",
            notes,
        )
    worst = told[0].finding
    more = f" and {words.count(len(told) - 1, 'finding')} more" if len(told) > 1 else ""
    found = f"{worst.title} ({worst.verdict}, {worst.severity}){more}"
    return f"{found}; {broken}" if broken and worst.verdict != "run-lost" else found, notes


def _broken_off(streams: Sequence[StreamSummary]) -> str:
    """Describes an error or signal that ended the training; else ''.

    The result is '' if the training finished, or its process was lost.
    """
    from ammeter.report import run_summary as overall
    from ammeter.wire import printable

    before = overall.continued(streams)
    ended = [each for each in streams if each.is_rank and each.bye and each.stream not in before]
    for each in ended:
        if each.bye is None or each.bye.reason not in ("exception", "signal"):
            continue
        said = printable.line(each.bye.message)[:MAX_WORDS]
        where = f"after step {each.last_step}" if each.last_step >= 0 else "before its first step"
        if each.bye.reason == "signal":
            return f"it was ended by {said or 'a signal'}"  # its last rows are lost too
        return f"it was interrupted {where}" if said.startswith("KeyboardInterrupt") else f"it raised {said} {where}"
    return ""


def _is_new(dir: Path, note: Note) -> bool:
    """Returns whether a note is new, and records that it was printed.

    A note that cannot be recorded counts as new every time.
    """
    name = hashlib.sha256(note.key.encode()).hexdigest()[:32]
    try:
        (journal.private_folder(dir / "said") / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
