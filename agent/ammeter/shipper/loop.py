"""Main loop of the shipper: finds streams, polls them in a few threads and exits."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
import traceback
from pathlib import Path

from ammeter import journal
from ammeter.environment import identity
from ammeter.shipper.http import Collector
from ammeter.shipper.process_death import DeathCauses
from ammeter.shipper.stream import Delivery
from ammeter.shipper.telemetry import Telemetry
from ammeter.wire import printable

MAX_THREADS = 8
"""Streams that can be sent at the same time. A hanging request blocks one of the threads."""

POLL_SECONDS = 0.05
"""Interval between two checks of the journals, which is the longest delay of an event here."""

DISCOVER_SECONDS = 0.25
"""Interval between two searches for new streams, which is the longest delay of a rank's first row here."""

GRACE_SECONDS = 3.0
"""How long the last shipper of a run waits for late streams after the last one was delivered."""

EXIT_SECONDS = 8.0
"""Time left after SIGTERM: enough to settle and deliver the streams that the same signal ended."""

GIVE_UP_SECONDS = 3600.0
"""How long the collector may accept nothing, with no writer alive, before an idle-exit shipper leaves the rest
undelivered."""

ONCE_FAILURES = 4
"""Consecutive failures after which --once exits: a second or two, enough for a collector that restarts."""

ONCE_ERRORS = 2
"""Read errors of a stream after which a shipper with --once skips it."""

ERROR_PAUSE_SECONDS = 5.0
"""Pause of a stream after its poll() raised."""


class Log:
    """Writes lines to stdout, one per change of state."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._lock = threading.Lock()

    def write(self, subject: str, state: str, line: str) -> None:
        with self._lock:
            if self._states.get(subject) == state:
                return
            self._states[subject] = state
            print(time.strftime("%Y-%m-%d %H:%M:%S"), printable.line(line), flush=True)


class Shipper:
    """Ships the streams in a folder: AMMETER_DIR, a run's folder or a stream's folder.

    host: ships only streams of that host. once: ships what exists now, then exits. idle_exit: exits when all writers
    are gone and everything is delivered.
    """

    def __init__(
        self,
        folder: Path,
        url: str,
        token: str | None,
        *,
        host: str | None = None,
        once: bool = False,
        idle_exit: bool = False,
        cap_bytes: int = journal.CAP_BYTES,
    ) -> None:
        self._folder = folder
        self._host = host
        self._once = once
        self._idle_exit = idle_exit
        self._cap_bytes = cap_bytes
        self._log = Log()
        self._collector = Collector(url, token, self._log.write)
        # Only the shipper of one run and host reads the devices; a shipper of many runs would read them twice.
        self._telemetry = Telemetry(folder, self._log.write) if host == identity.host() and not once else None
        # A shipper that was started by a writer shares its PID namespace; one that was started by hand may not, and the
        # ids may then belong to other processes.
        self._deaths = DeathCauses() if host == identity.host() and not once else None
        self._active: dict[Path, Delivery] = {}
        self._locks: dict[Path, int] = {}
        self._skipped: set[Path] = set()
        self._unopened: set[Path] = set()
        self._errors: dict[Path, int] = {}
        self._busy: set[Path] = set()
        self._paused_until: dict[Path, float] = {}
        self._queue: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._threads = 0
        self._deadline: float | None = None

    @property
    def exit_requested(self) -> bool:
        return self._deadline is not None

    def request_exit(self) -> None:
        """Requests an exit after delivery, in EXIT_SECONDS at most.

        An earlier exit needs all streams delivered and all writers gone.
        """
        if self._deaths is not None:
            self._deaths.note_termination()
        self._deadline = self._deadline or time.monotonic() + EXIT_SECONDS

    def run(self) -> int:
        """Ships until an exit condition applies. Returns 0 if everything was delivered, else 1."""
        try:
            return self._ship()
        finally:
            if self._telemetry is not None:
                self._telemetry.stop()
            for _ in range(self._threads):
                self._queue.put(None)
            self._threads = 0

    def _ship(self) -> int:
        discover_at, busy_until = 0.0, time.monotonic()
        while True:
            now = time.monotonic()
            if now >= discover_at:
                self.discover()
                # A folder with thousands of old streams is not searched continuously.
                discover_at = time.monotonic() + max(DISCOVER_SECONDS, 20 * (time.monotonic() - now))
            self._remove_finished()
            self._read_devices(now)
            busy_until = now if self._active else busy_until
            code = self._exit_code(now, busy_until)
            if code is not None:
                return code
            self._queue_polls(now)
            self._wake.wait(max(POLL_SECONDS, 0.002 * len(self._active)))
            self._wake.clear()

    def _read_devices(self, now: float) -> None:
        if self._telemetry is None:
            return
        try:
            self._telemetry.poll(self._active, now)
        except Exception as error:  # noqa: BLE001 - streams are shipped even if devices cannot be read
            self._log.write("telemetry", repr(error), f"devices are no longer read: {error!r}")
            with contextlib.suppress(OSError):
                self._telemetry.stop()
            self._telemetry = None

    def discover(self) -> bool:
        """Starts to ship streams that no shipper has yet. Returns whether there are active streams."""
        for folder in self.stream_folders():
            if folder in self._active or folder in self._skipped:
                continue
            try:
                self._open(folder)
                self._unopened.discard(folder)
            except (OSError, ValueError) as error:
                self._unopened.add(folder)
                self._log.write(f"open {folder}", str(error), f"{folder} cannot be shipped: {error}")
        return bool(self._active)

    def stream_folders(self) -> list[Path]:
        """Lists the streams in the folder, of whatever host."""
        if (self._folder / "alive").exists():
            return [self._folder]
        runs = (run for run in self._folder.glob("*/") if run.is_dir())
        return journal.streams(self._folder) or sorted(stream for run in runs for stream in journal.streams(run))

    def _open(self, folder: Path) -> None:
        if self._host is not None and not self._is_of_host(folder, self._host):
            return
        lock = journal.lock(folder / "shipper")
        if lock is None:
            owner = journal.lock_owner(folder / "shipper")
            raise BlockingIOError(f"process {owner} ships it; end that process to ship the stream from here")
        self._locks[folder] = lock
        self._active[folder] = Delivery(
            folder,
            self._collector,
            self._log.write,
            flush=self._once,
            cap_bytes=self._cap_bytes,
            deaths=self._deaths,
        )

    def _is_of_host(self, folder: Path, host: str) -> bool:
        """Returns whether the stream is of this host.

        A stream of another host is not opened again. A stream without a hello may still become one of this host.
        """
        hello = journal.schema_before(folder, 0)
        if hello is not None and hello.host != host:
            self._skipped.add(folder)
        return hello is not None and hello.host == host

    def _remove_finished(self) -> None:
        for folder, delivery in list(self._active.items()):
            deleted = not folder.exists()
            if folder not in self._busy and (delivery.done or deleted):
                del self._active[folder]
                self._skipped.add(folder)
                journal.unlock(self._locks.pop(folder))

    def _exit_code(self, now: float, busy_until: float) -> int | None:
        """Returns the exit code when it is time to exit, else None."""
        if self._once and not any(folder in self._busy for folder in self._active):
            if all(delivery.up_to_date for delivery in self._active.values()):
                return 1 if self._unopened else 0
            if all(self._gives_up(folder) for folder in self._active):
                return self._report_undelivered("the collector does not accept the data, or the journal cannot be read")
        if self._deadline is not None:
            if not self._active:
                return 0
            if now >= self._deadline:
                return self._report_undelivered("the shipper was asked to exit")
        if not self._idle_exit or self._once:
            return None
        if not self._active:
            return 0 if now - busy_until >= GRACE_SECONDS else None
        rejected = now - self._collector.accepted_at >= GIVE_UP_SECONDS
        if rejected and not any(delivery.alive for delivery in self._active.values()):
            return self._report_undelivered("the collector accepted nothing for an hour")
        return None

    def _gives_up(self, folder: Path) -> bool:
        """Returns whether a shipper with --once stops trying to deliver a stream."""
        delivery = self._active[folder]
        failed = delivery.failures >= ONCE_FAILURES or self._errors.get(folder, 0) >= ONCE_ERRORS
        return delivery.up_to_date or failed

    def _report_undelivered(self, reason: str) -> int:
        count = sum(not delivery.up_to_date for delivery in self._active.values())
        streams = "1 stream is" if count == 1 else f"{count} streams are"
        line = f"{streams} not completely delivered: {reason}; to deliver the rest: ammeter ship {self._folder}"
        if count:
            self._log.write("undelivered", line, line)
        return 1 if count else 0

    def _queue_polls(self, now: float) -> None:
        for folder in self._active:
            if folder not in self._busy and now >= self._paused_until.get(folder, 0.0):
                self._busy.add(folder)
                self._queue.put(folder)
        while self._threads < min(MAX_THREADS, len(self._active)):
            self._threads += 1
            # Daemon threads: a hanging request must not keep the process from exiting.
            threading.Thread(target=self._work, name=f"ammeter-ship-{self._threads}", daemon=True).start()

    def _work(self) -> None:
        while (folder := self._queue.get()) is not None:
            try:
                if self._active[folder].poll():
                    self._wake.set()
                self._errors.pop(folder, None)
            except Exception as error:  # noqa: BLE001 - the one place: an error of one stream must not stop the others
                self._errors[folder] = self._errors.get(folder, 0) + 1
                self._paused_until[folder] = time.monotonic() + ERROR_PAUSE_SECONDS
                line = f"{folder} is paused for {ERROR_PAUSE_SECONDS:.0f} s: {error!r}"
                self._log.write(f"error {folder}", repr(error), line)
                if not isinstance(error, OSError):
                    traceback.print_exc(file=sys.stdout)
            finally:
                self._busy.discard(folder)
