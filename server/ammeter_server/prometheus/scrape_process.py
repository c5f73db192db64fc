"""Renders /metrics in a child process.

The text of a thousand runs takes a tenth of a second. In a thread of the collector, rendering would repeatedly keep
ingest waiting for the interpreter.

The first scrape starts the process. It exits when its standard input closes, so it ends with the collector, however
that ends. A request is a line of JSON. The response is a sequence of frames: a letter, four bytes of length, and that
many bytes.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import select
import struct
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress

from anyio import CapacityLimiter, to_thread

from ammeter_server.config.prices import Prices
from ammeter_server.db import StoreAwayError, StoreBrokenError, StoreFullError, StoreRefusingError, connect
from ammeter_server.process import cpu_affinity
from ammeter_server.prometheus.scrape import Scrape

SCRAPE_TIMEOUT_SECONDS = 30.0
"""Maximum duration of a scrape: three times as long as Prometheus waits for one."""

NICE = 5
"""Ingest has priority over scrapes."""

PIPE_BYTES = 2**20
"""Capacity of the pipe of responses. With the usual 64 KiB, five megabytes take 80 changes between the processes."""

SCRAPES_PER_FULL_COLLECTION = 100
"""Scrapes after which objects that earlier collections left out are searched for cycles as well."""

MAX_FRAME_BYTES = 256 * 2**10
"""Maximum bytes of one frame."""

TEXT, END, UNAVAILABLE, FAULT = b"t", b".", b"a", b"e"
"""Kinds of frames: text, end of the response, error of the database (name and message), traceback."""

STORE_ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (StoreFullError, StoreAwayError, StoreRefusingError, StoreBrokenError)
}
"""The errors of the database by name: the child process sends one as its name and message, and the collector raises
it again, so that a scrape is answered as any other request is."""

HEAD = struct.Struct(">cI")

PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from ammeter_server.prometheus.scrape_process import main; main()"
"""Uses the collector's module path, without the current directory at its front."""


class ScrapeError(RuntimeError):
    """A scrape failed; the message gives the reason."""


class ScrapeProcess:
    """The collector's end of the child process; one scrape at a time."""

    def __init__(self, database_url: str, prices: Prices = ()) -> None:
        self._setup = {"database_url": database_url, "prices": prices}
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = CapacityLimiter(1)  # a thread of its own, so that readers do not wait for scrapes
        self._lock = threading.Lock()
        self._stopped = False

    async def text(self, is_open: bool) -> list[bytes]:
        """Returns a new scrape, in pieces, and restarts the process once if it has died.

        Args:
            is_open: True for OpenMetrics.

        Raises:
            StoreAwayError: The database cannot be read now. As elsewhere, its subclasses say who can help.
            StoreFullError: The disk of the database is full.
            ScrapeError: Any other failure of the child process.
        """
        return await to_thread.run_sync(self._text, is_open, limiter=self._thread)

    def stop(self) -> None:
        """Ends the process. A waiting scrape fails with ScrapeError. Can be called again."""
        self._stopped = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._end()

    def _text(self, is_open: bool) -> list[bytes]:
        with self._lock:
            try:
                return self._request(is_open)
            except (EOFError, BrokenPipeError):
                self._end()
            try:
                return self._request(is_open)
            except (EOFError, BrokenPipeError) as error:
                self._end()
                raise ScrapeError("the child process of scrapes ended twice; the log has its last lines") from error

    def _request(self, is_open: bool) -> list[bytes]:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"open": is_open}).encode() + b"\n")
        process.stdin.flush()
        pieces, until = list[bytes](), time.monotonic() + SCRAPE_TIMEOUT_SECONDS
        while True:
            kind, content = self._read_frame(process.stdout.fileno(), until)
            if kind == TEXT:
                pieces.append(content)
            elif kind == END:
                return pieces
            elif kind == UNAVAILABLE:
                name, message = json.loads(content)
                raise STORE_ERRORS[name](message)
            else:
                raise ScrapeError(content.decode())

    def _start(self) -> subprocess.Popen[bytes]:
        if self._stopped:
            raise ScrapeError("the collector is stopping")
        command = [sys.executable, "-P", "-c", PROGRAM, *sys.path]
        pipe = subprocess.PIPE  # a session of its own: Ctrl-C in a terminal reaches only the collector
        with cpu_affinity.any_core():
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(AttributeError, OSError):  # only Linux has it, and limits it for each user
            fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        process.stdin.write(json.dumps(self._setup).encode() + b"\n")  # not as arguments, which other users can see
        return process

    def _read_frame(self, pipe: int, until: float) -> tuple[bytes, bytes]:
        kind, size = HEAD.unpack(self._read(pipe, HEAD.size, until))
        return kind, self._read(pipe, size, until)

    def _read(self, pipe: int, size: int, until: float) -> bytes:
        """Reads exactly `size` bytes. Raises EOFError if the process has ended, ScrapeError after `until`."""
        content, poll = bytearray(), select.poll()
        poll.register(pipe, select.POLLIN)
        while len(content) < size:
            if not poll.poll(1000 * max(0.0, until - time.monotonic())):
                self._end()
                raise ScrapeError(f"the scrape took more than {SCRAPE_TIMEOUT_SECONDS:.0f} s and was cancelled")
            part = os.read(pipe, size - len(content))
            if not part:
                raise EOFError
            content += part
        return bytes(content)

    def _end(self) -> None:
        """Kills the process, which has no state to save.

        The next scrape starts a new one.
        """
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def main() -> None:
    """Entry point of the child process: serves requests until standard input closes."""
    os.nice(NICE)
    requests = sys.stdin.buffer
    setup = json.loads(requests.readline())
    scrape = Scrape(connect(setup["database_url"]), setup["prices"])
    gc.disable()
    _collect_garbage()
    for number, line in enumerate(requests, start=1):
        try:
            _answer(scrape, is_open=json.loads(line)["open"])
        except BrokenPipeError:  # the collector has ended
            return
        if number % SCRAPES_PER_FULL_COLLECTION == 0:
            gc.unfreeze()
        _collect_garbage()  # no request is waiting now


def _collect_garbage() -> None:
    """Frees the cycles of the last request, and leaves out what is still alive from all later collections.

    The cached text of a thousand runs has no cycles, but a search of it takes longer than a scrape.
    """
    gc.collect()
    gc.freeze()


def _answer(scrape: Scrape, *, is_open: bool) -> None:
    try:
        for text in scrape.text(time.time_ns(), is_open):
            content = memoryview(text)
            for begin in range(0, len(content), MAX_FRAME_BYTES):
                _write(TEXT, content[begin : begin + MAX_FRAME_BYTES])
    except BrokenPipeError:
        raise
    except (StoreAwayError, StoreFullError) as error:
        _write(UNAVAILABLE, json.dumps([type(error).__name__, str(error)]).encode())
    except Exception:  # noqa: BLE001 - the collector logs it; the next scrape may succeed
        _write(FAULT, traceback.format_exc().encode())
    else:
        _write(END)


def _write(kind: bytes, content: bytes | memoryview = b"") -> None:
    rest = memoryview(HEAD.pack(kind, len(content)) + content)
    while rest:
        rest = rest[os.write(1, rest) :]
