"""A process beside the collector's that does its scrapes. The text of a thousand runs takes a tenth of a second, and
if a thread of the collector made it, all who send frames would wait for the interpreter again and again meanwhile.

It is started by the first scrape, and ends when its standard input does: with the collector, however that ends. It is
asked with a line of JSON and answers in frames: a letter, four bytes of length, and as many bytes.
"""

from __future__ import annotations

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

from anyio import CapacityLimiter, to_thread

from ammeter_server.config.prices import Prices
from ammeter_server.db import StoreAwayError, StoreFullError, connect
from ammeter_server.process import cpu_affinity
from ammeter_server.prometheus.scrape import Scrape

SCRAPE_TIMEOUT_SECONDS = 30.0
"""Seconds that a scrape may take: three times what Prometheus waits for one."""

NICE = 5
"""Whoever sends frames comes before whoever scrapes."""

MAX_FRAME_BYTES = 256 * 2**10
"""Bytes of one frame at most."""

TEXT, OVER, AWAY, FAULT = b"t", b".", b"a", b"e"
"""What frames hold: text, nothing any more, why the database cannot be read now, a traceback."""

HEAD = struct.Struct(">cI")

PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from ammeter_server.prometheus.scrape_process import main; main()"
"""Looks for modules where the collector does, and not first in the folder that it happens to be in."""


class ScrapeError(RuntimeError):
    """Why there is no text."""


class ScrapeProcess:
    """The collector's end: one scrape after the other."""

    def __init__(self, database_url: str, prices: Prices = ()) -> None:
        self._told = {"database_url": database_url, "prices": prices}
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = CapacityLimiter(1)  # its own: who reads does not wait for who scrapes
        self._turn = threading.Lock()
        self._stopped = False

    async def text(self, is_open: bool) -> list[bytes]:
        """A scrape of now, in pieces. is_open: for OpenMetrics. Where the process has died, another one is asked.

        Raises StoreAwayError where the database cannot be read now, ScrapeError for what else went wrong there.
        """
        return await to_thread.run_sync(self._text, is_open, limiter=self._thread)

    def stop(self) -> None:
        """Ends the process; who waits for it gets a ScrapeError. Twice is fine."""
        self._stopped = True
        process = self._process
        if process is not None:
            process.kill()
        with self._turn:
            self._end()

    def _text(self, is_open: bool) -> list[bytes]:
        with self._turn:
            try:
                return self._asked(is_open)
            except (EOFError, BrokenPipeError):
                self._end()
            try:
                return self._asked(is_open)
            except (EOFError, BrokenPipeError) as error:
                self._end()
                raise ScrapeError("the process that does scrapes ended twice; the lines above say why") from error

    def _asked(self, is_open: bool) -> list[bytes]:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"open": is_open}).encode() + b"\n")
        process.stdin.flush()
        pieces, until = list[bytes](), time.monotonic() + SCRAPE_TIMEOUT_SECONDS
        while True:
            kind, size = HEAD.unpack(self._read(process.stdout.fileno(), HEAD.size, until))
            said = self._read(process.stdout.fileno(), size, until)
            if kind == TEXT:
                pieces.append(said)
            elif kind == OVER:
                return pieces
            elif kind == AWAY:
                raise StoreAwayError(said.decode())
            else:
                raise ScrapeError(said.decode())

    def _start(self) -> subprocess.Popen[bytes]:
        if self._stopped:
            raise ScrapeError("the collector is about to end")
        command = [sys.executable, "-P", "-c", PROGRAM, *sys.path]
        pipe = subprocess.PIPE  # a session of its own: Ctrl-C in a terminal is for the collector
        with cpu_affinity.anywhere():
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
        self._process = process
        assert process.stdin is not None
        process.stdin.write(json.dumps(self._told).encode() + b"\n")  # arguments can be seen
        return process

    def _read(self, pipe: int, size: int, until: float) -> bytes:
        """So many bytes. Raises EOFError where the process has ended, ScrapeError where it takes too long."""
        got, look = bytearray(), select.poll()
        look.register(pipe, select.POLLIN)
        while len(got) < size:
            if not look.poll(1000 * max(0.0, until - time.monotonic())):
                self._end()
                raise ScrapeError(f"the scrape took more than {SCRAPE_TIMEOUT_SECONDS:.0f} s, and was given up")
            more = os.read(pipe, size - len(got))
            if not more:
                raise EOFError
            got += more
        return bytes(got)

    def _end(self) -> None:
        """Ends the process, which only reads. The next scrape gets a new one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def main() -> None:
    """The process: answers until nobody can ask any more."""
    os.nice(NICE)
    asked = sys.stdin.buffer
    told = json.loads(asked.readline())
    scrape = Scrape(connect(told["database_url"]), told["prices"])
    gc.collect()
    gc.freeze()
    gc.disable()
    for line in asked:
        try:
            _answer(scrape, is_open=json.loads(line)["open"])
        except BrokenPipeError:  # the collector has ended
            return
        gc.collect()  # while nobody waits


def _answer(scrape: Scrape, *, is_open: bool) -> None:
    try:
        for text in scrape.text(time.time_ns(), is_open):
            whole = memoryview(text)
            for begin in range(0, len(whole), MAX_FRAME_BYTES):
                _write(TEXT, whole[begin : begin + MAX_FRAME_BYTES])
    except BrokenPipeError:
        raise
    except (StoreAwayError, StoreFullError) as error:
        _write(AWAY, str(error).encode())
    except Exception:  # noqa: BLE001 - told where somebody reads it; the next scrape may do better
        _write(FAULT, traceback.format_exc().encode())
    else:
        _write(OVER)


def _write(kind: bytes, said: bytes | memoryview = b"") -> None:
    left = memoryview(HEAD.pack(kind, len(said)) + said)
    while left:
        left = left[os.write(1, left) :]
