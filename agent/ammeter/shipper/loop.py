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
from ammeter.shipper.process_death import Deaths
from ammeter.shipper.stream import Delivery
from ammeter.shipper.telemetry import Telemetry
from ammeter.wire import printable

THREADS = 8
"""Streams that can be sent at the same time. A hanging request blocks one of the threads."""

POLL_SECONDS = 0.05
"""Interval between two checks of the journals, which is the longest delay of an event here."""

DISCOVER_SECONDS = 0.25
"""Interval between two searches for new streams, which is the longest delay of a rank's first row here."""

GRACE_SECONDS = 3.0
"""How long the last shipper of a run waits for late streams after the last one was delivered."""

HURRY_SECONDS = 8.0
"""Time left after SIGTERM: enough to settle and deliver the streams that the same signal ended."""

GIVE_UP_SECONDS = 3600.0
"""How long the collector may accept nothing, with no writer alive, before an idle-exit shipper leaves the rest
undelivered."""

ONCE_FAILURES = 4
"""Consecutive failures after which --once exits: a second or two, enough for a collector that restarts."""

ONCE_FAULTS = 2
"""Read errors of a stream after which a shipper with --once skips it."""

FAULT_SECONDS = 5.0
"""Pause of a stream after its poll() raised."""


class Log:
    """Writes lines to stdout, one per change of state."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._lock = threading.Lock()

    def say(self, about: str, state: str, line: str) -> None:
        with self._lock:
            if self._states.get(about) == state:
                return
            self._states[about] = state
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
        self._collector = Collector(url, token, self._log.say)
        # Only the shipper of one run and host reads the devices; a shipper of many runs would read them twice.
        self._telemetry = Telemetry(folder, self._log.say) if host == identity.host() and not once else None
        # A shipper that was started by a writer shares its PID namespace; one that was started by hand may not, and the
        # ids may then belong to other processes.
        self._deaths = Deaths() if host == identity.host() and not once else None
        self._active: dict[Path, Delivery] = {}
        self._locks: dict[Path, int] = {}
        self._passed: set[Path] = set()
        self._closed: set[Path] = set()
        self._faults: dict[Path, int] = {}
        self._busy: set[Path] = set()
        self._rests: dict[Path, float] = {}
        self._waiting: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._threads = 0
        self._deadline: float | None = None

    @property
    def hurried(self) -> bool:
        return self._deadline is not None

    def hurry(self) -> None:
        """Requests an exit after delivery, in HURRY_SECONDS at most.

        An earlier exit needs all streams delivered and all writers gone.
        """
        if self._deaths is not None:
            self._deaths.note_termination()
        self._deadline = self._deadline or time.monotonic() + HURRY_SECONDS

    def run(self) -> int:
        """Ships until an exit condition applies. Returns 0 if everything was delivered, else 1."""
        try:
            return self._ship()
        finally:
            if self._telemetry is not None:
                self._telemetry.stop()
            for _ in range(self._threads):
                self._waiting.put(None)
            self._threads = 0

    def _ship(self) -> int:
        discover_at, busy_until = 0.0, time.monotonic()
        while True:
            now = time.monotonic()
            if now >= discover_at:
                self.discover()
                # A folder with thousands of old streams is not searched continuously.
                discover_at = time.monotonic() + max(DISCOVER_SECONDS, 20 * (time.monotonic() - now))
            self._retire()
            self._read_devices(now)
            busy_until = now if self._active else busy_until
            code = self._leave(now, busy_until)
            if code is not None:
                return code
            self._give_turns(now)
            self._wake.wait(max(POLL_SECONDS, 0.002 * len(self._active)))
            self._wake.clear()

    def _read_devices(self, now: float) -> None:
        if self._telemetry is None:
            return
        try:
            self._telemetry.poll(self._active, now)
        except Exception as error:  # noqa: BLE001 - streams are shipped whatever becomes of it
            self._log.say("telemetry", repr(error), f"devices are not read any more: {error!r}")
            with contextlib.suppress(OSError):
                self._telemetry.stop()
            self._telemetry = None

    def discover(self) -> bool:
        """Starts to ship streams that no shipper has yet. Returns whether there are active streams."""
        for folder in self._stream_folders():
            if folder in self._active or folder in self._passed:
                continue
            try:
                self._take_on(folder)
                self._closed.discard(folder)
            except (OSError, ValueError) as error:
                self._closed.add(folder)
                self._log.say(f"open {folder}", str(error), f"{folder} cannot be shipped: {error}")
        return bool(self._active)

    def _stream_folders(self) -> list[Path]:
        if (self._folder / "alive").exists():
            return [self._folder]
        runs = (each for each in self._folder.glob("*/") if each.is_dir())
        return journal.streams(self._folder) or sorted(stream for run in runs for stream in journal.streams(run))

    def _take_on(self, folder: Path) -> None:
        if self._host is not None:
            first = journal.schema_before(folder, 0)
            if first is None:
                return
            if first.host != self._host:
                self._passed.add(folder)
                return
        held = journal.lock(folder / "shipper")
        if held is None:
            raise BlockingIOError(
                f"process {journal.holder(folder / 'shipper')} ships it; end that to ship it otherwise"
            )
        self._locks[folder] = held
        self._active[folder] = Delivery(
            folder,
            self._collector,
            self._log.say,
            flush=self._once,
            cap_bytes=self._cap_bytes,
            deaths=self._deaths,
        )

    def _retire(self) -> None:
        for folder, delivery in list(self._active.items()):
            gone = not folder.exists()
            if folder not in self._busy and (delivery.done or gone):
                del self._active[folder]
                self._passed.add(folder)
                journal.unlock(self._locks.pop(folder))

    def _leave(self, now: float, busy_until: float) -> int | None:
        """Returns the exit code when it is time to exit, else None."""
        idle = [path for path in self._active if path not in self._busy]
        settled = len(idle) == len(self._active)
        if self._once and settled:
            if all(each.up_to_date for each in self._active.values()):
                return 1 if self._closed else 0
            if all(self._given_up(path) for path in self._active):
                return self._left_behind("the collector does not take it, or it cannot be read")
        if self._deadline is not None:
            if not self._active:
                return 0
            if now >= self._deadline:
                return self._left_behind("the shipper was told to end")
        if not self._idle_exit or self._once:
            return None
        if not self._active:
            return 0 if now - busy_until >= GRACE_SECONDS else None
        silent = now - self._collector.accepted >= GIVE_UP_SECONDS
        if silent and not any(each.alive for each in self._active.values()):
            return self._left_behind("the collector accepted nothing for an hour")
        return None

    def _given_up(self, folder: Path) -> bool:
        stream = self._active[folder]
        tried = stream.failures >= ONCE_FAILURES or self._faults.get(folder, 0) >= ONCE_FAULTS
        return stream.up_to_date or tried

    def _left_behind(self, why: str) -> int:
        left = [path.name for path, each in self._active.items() if not each.up_to_date]
        line = f"{len(left)} stream(s) are not delivered to their end: {why}; later: ammeter ship {self._folder}"
        if left:
            self._log.say("left", line, line)
        return 1 if left else 0

    def _give_turns(self, now: float) -> None:
        for folder in self._active:
            if folder not in self._busy and now >= self._rests.get(folder, 0.0):
                self._busy.add(folder)
                self._waiting.put(folder)
        while self._threads < min(THREADS, len(self._active)):
            self._threads += 1
            # Daemon threads: a hanging request must not keep the process from exiting.
            threading.Thread(target=self._work, name=f"ammeter-ship-{self._threads}", daemon=True).start()

    def _work(self) -> None:
        while (folder := self._waiting.get()) is not None:
            try:
                if self._active[folder].poll():
                    self._wake.set()
                self._faults.pop(folder, None)
            except Exception as error:  # noqa: BLE001 - the one place: a fault of one stream must not stop the others
                self._faults[folder] = self._faults.get(folder, 0) + 1
                self._rests[folder] = time.monotonic() + FAULT_SECONDS
                self._log.say(f"fault {folder}", repr(error), f"{folder} rests for a while: {error!r}")
                if not isinstance(error, OSError):
                    traceback.print_exc(file=sys.stdout)
            finally:
                self._busy.discard(folder)
