"""Prints the last lines of `ammeter run`: a summary of the run, and where its report is."""

from __future__ import annotations

import hashlib
import os
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ammeter import journal
from ammeter.environment.blas_threads import ONE_THREAD
from ammeter.environment.settings import Settings
from ammeter.launcher.exit_watcher import WatchedStreams
from ammeter.launcher.supervisor import print_line
from ammeter.redaction import text

if TYPE_CHECKING:
    from ammeter.report.stream_summary import StreamSummary
    from ammeter.verdicts.framework.finding import Finding

MAX_ERROR_CHARS = 200
"""Length limit of an error's message; the program has already printed all of it."""

MAX_JOURNAL_BYTES = 64 * 2**20
"""A longer journal is not diagnosed, because users should not wait for that at the end of their command."""

IMPORT_AFTER_SECONDS = 0.3
"""Time from the start of the command to import_later()'s import. A command that runs for longer is probably importing
torch."""


def import_later() -> threading.Timer:
    """Returns a thread that imports what print_result() needs, IMPORT_AFTER_SECONDS after its start.

    Start it with the command, and cancel it when the command has ended. The command's import of torch takes a second or
    more on one core; this import of 0.2 s uses another one, and is not left for the end of the command.
    """
    return threading.Timer(IMPORT_AFTER_SECONDS, _import)


def _import() -> None:
    os.environ.update(ONE_THREAD)
    with suppress(Exception):  # raised again where the result is made, and printed there
        import ammeter.report.diagnosis  # noqa: F401


def print_result(chosen: Settings, run: str | None, watched: WatchedStreams, reasons: Callable[[], list[str]]) -> None:
    """Prints on stderr the state of the run, or why no run was watched."""
    if run is None:
        report = f"ammeter report {_quoted(chosen.dir)}"
        print_line(f"ammeter: the ranks chose the id of their run; read it with: {report}")
        return
    if not watched.streams:
        print_line("\n".join(f"ammeter: nothing was watched: {reason}" for reason in reasons()))
        return
    if chosen.url and watched.died:
        _await_delivery(watched.died, chosen.flush)
    folder = watched.streams[0].parent
    page = f"page: {text(chosen.url, 1000)}/runs/{run}, or " if chosen.url else "read it with: "
    summary, notes = _summarize(folder)
    print_line(f"ammeter: {summary}; {page}ammeter report {_quoted(folder)}")
    for note in notes:
        if _is_new(chosen.dir, note):
            print_line(f"ammeter: note, printed once: {note.text}")


def _await_delivery(streams: list[Path], seconds: float) -> None:
    """Waits for the delivery of streams of killed processes, which could not wait themselves.

    A container, and the shipper in it, ends with this process.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not all(
        journal.acknowledged(stream) >= journal.end_of(stream) for stream in streams
    ):
        time.sleep(0.05)


@dataclass(frozen=True)
class ProjectNote:
    """An observation about a project, not about this run. key: its subject."""

    key: str
    text: str


def _summarize(folder: Path) -> tuple[str, list[ProjectNote]]:
    """Returns a short description of the findings, and notes to print after it."""
    size = sum(path.stat().st_size for path in folder.glob("*/*.seg"))
    if size > MAX_JOURNAL_BYTES:
        return f"the journal of the run has {size / 2**20:.0f} MiB", []
    from ammeter.report import diagnosis, run_summary
    from ammeter.verdicts.checkpoints.checkpoint_exposed import is_note

    try:
        report = diagnosis.diagnose(folder)
    except (ValueError, OSError) as error:
        return f"the journal of the run cannot be read ({error})", []
    project = run_summary.run_of(report.streams)["project"]
    findings = [reported.finding for reported in report.findings]
    notes = [
        ProjectNote(f"{finding.verdict} {project}", f"{finding.cause} ({finding.verdict})")
        for finding in findings
        if is_note(finding)
    ]
    silenced = [verdict for verdict, fired in report.silenced.items() if fired]
    interruption = _interruption(report.streams)
    return _headline(findings, silenced, interruption, len(report.not_judged)), notes


def _headline(findings: Sequence[Finding], silenced: Sequence[str], interruption: str, not_judged: int) -> str:
    """Describes the first finding about the training, or that there is none, and counts all others."""
    from ammeter.verdicts.checkpoints.checkpoint_exposed import is_note
    from ammeter.verdicts.framework import wording

    about_training = [finding for finding in findings if not is_note(finding)]
    if not about_training:
        healthy = f"{interruption}; nothing else wrong was found" if interruption else "nothing wrong was found"
        healthy += f", apart from silenced verdicts: {', '.join(silenced)}" if silenced else ""
        healthy += f"; {wording.count(not_judged, 'verdict')} not judged: too few readings" if not_judged else ""
        notes = ", ".join(dict.fromkeys(finding.verdict for finding in findings))
        return f"{healthy}; {wording.count(len(findings), 'ticket')} beside the training: {notes}" if notes else healthy
    worst = about_training[0]
    more = f" and {wording.count(len(findings) - 1, 'finding')} more" if len(findings) > 1 else ""
    headline = f"{worst.title} ({worst.verdict}, {worst.severity}){more}"
    return f"{headline}; {interruption}" if interruption and worst.verdict != "run-lost" else headline


def _interruption(streams: Sequence[StreamSummary]) -> str:
    """Describes an error or signal that ended the training; else ''.

    The result is '' if the training finished, or its process was lost.
    """
    from ammeter.report import run_summary
    from ammeter.wire import printable

    continued = run_summary.continued(streams)
    for stream in streams:
        if not stream.is_rank or stream.bye is None or stream.stream in continued:
            continue
        if stream.bye.reason not in ("exception", "signal"):
            continue
        message = printable.line(stream.bye.message)[:MAX_ERROR_CHARS]
        if stream.bye.reason == "signal":
            return f"the program was ended by {message or 'a signal'}"  # its last rows are lost too
        where = f"after step {stream.last_step}" if stream.last_step >= 0 else "before its first step"
        if message.startswith("KeyboardInterrupt"):
            return f"the program was interrupted {where}"
        return f"the program raised {message} {where}"
    return ""


def _is_new(dir: Path, note: ProjectNote) -> bool:
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
