"""Runs Python programs as forks of a process that has done their imports.

This saves the three seconds of a new interpreter.

Use it for a program that trains or a collector that serves. Use subprocess if the test is about the start of an
interpreter (.pth files, PYTHON* and OMP_* variables) or reads the process's command line or parent.
tests/fork_server.py is the other end and lists the differences.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.fork_children import at_start

TRAINING = ("torch", "torch._dynamo", "ammeter.watching.setup")
"""Imports of a training program."""

LAUNCH = ("torch", "torch._dynamo", "numpy", "argparse", "concurrent.futures", "hashlib", "importlib.util", "uuid")
"""Imports of `ammeter run` and the training programs below it, without those of Ammeter."""

COLLECTOR = ("ammeter_server.__main__", "ammeter_server.app", "uvicorn")
"""Imports of `ammeter-server serve`."""

_ROOT = Path(__file__).parents[1]
_PROGRAM = (
    "import sys; sys.path[0] = sys.argv[1]; from tests import fork_server as f; f.main(int(sys.argv[2]), sys.argv[3:])"
)


class Popen(subprocess.Popen[Any]):
    """Runs `sys.executable ARGUMENTS`, with the interface of subprocess.Popen.

    Accepts cwd, env, stdin, stdout, stderr, text and start_new_session. The fork server starts with the first process
    and ends with this one.

    imports: modules that are imported already. levels: 1 if Python processes that the program starts are forks too, 2
    if those that these start are as well (tests/fork_children.py). settings: variables that an interpreter reads at its
    start; there is a fork server for each.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        imports: Sequence[str] = TRAINING,
        levels: int = 0,
        settings: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        assert sys.executable == command[0], f"{command[0]} is not this interpreter; start it with subprocess"
        assert command[1] in ("-m", "-c") or not str(command[1]).startswith("-"), (
            f"{command[1]} is for a new interpreter"
        )
        unknown = options.keys() - {"cwd", "env", "stdin", "stdout", "stderr", "text", "start_new_session"}
        assert not unknown, f"a fork cannot be given {sorted(unknown)}; start it with subprocess"
        self._server = _server(tuple(imports), tuple((settings or {}).items()))
        self._levels = levels
        super().__init__([str(word) for word in command], **options)

    def _execute_child(
        self,
        args: list[str],
        _executable: Any,
        _preexec: Any,
        _close_fds: Any,
        _pass_fds: Any,
        cwd: Any,
        env: Any,
        *rest: Any,
    ) -> None:
        """Requests a fork from the server, where subprocess.Popen forks and executes."""
        pipes = rest[3:9]  # output and error are (parent's, child's), input is (child's, parent's)
        start_new_session = rest[-2]
        child_in, child_out, child_err = pipes[0], pipes[3], pipes[5]
        streams = [given if given != -1 else own for own, given in enumerate((child_in, child_out, child_err))]
        environment = dict(os.environ if env is None else env)
        self._server.check(environment)
        request = {
            "arguments": args[1:],
            "folder": str(Path(cwd or ".").resolve()),
            "environment": environment,
            "session": start_new_session,
            "levels": self._levels,
        }
        status, status_of_child = os.pipe()
        self._status = os.fdopen(status, "rb", buffering=0)
        self._server.send(json.dumps(request).encode(), [*streams, status_of_child])
        os.close(status_of_child)
        self.pid = self._number()
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        """Returns the exit code, None while the process runs."""
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode

    def _try_wait(self, flags: int) -> tuple[int, int]:
        """Returns the result of os.waitpid(self.pid, flags) for a child of this process."""
        if self.returncode is not None:
            return 0, 0
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        if not poll.poll(0 if flags else None):
            return 0, 0
        status = self._number()
        self._status.close()
        return self.pid, status

    def _number(self) -> int:
        data = self._status.read(4)
        assert data, "the fork server has ended"
        return int.from_bytes(data, "little")


def run(
    command: Sequence[str | Path],
    *,
    timeout: float,
    check: bool = False,
    capture_output: bool = False,
    input: str | None = None,
    imports: Sequence[str] = TRAINING,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Same as subprocess.run(), with text for captured output."""
    if capture_output:
        options["stdout"] = options["stderr"] = subprocess.PIPE
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Popen(command, imports=imports, text=True, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def as_module(imports: Sequence[str] = TRAINING) -> SimpleNamespace:
    """Returns what replaces the module `subprocess` in code that starts an interpreter which imports torch."""
    replaced = {"Popen": functools.partial(Popen, imports=imports), "run": functools.partial(run, imports=imports)}
    return SimpleNamespace(**{**vars(subprocess), **replaced})


class _Server:
    def __init__(self, modules: tuple[str, ...], settings: tuple[tuple[str, str], ...]) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1", **dict(settings)}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(_ROOT), str(theirs.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                env=self._environment,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self._stop)

    def check(self, environment: dict[str, str]) -> None:
        """Checks that a fork can have the requested environment. Raises AssertionError otherwise."""
        own, asked = at_start(self._environment), at_start(environment)
        differing = {
            name: (own.get(name), asked.get(name)) for name in {*own, *asked} if own.get(name) != asked.get(name)
        }
        assert not differing, f"{differing} were the first at the start; give the second as settings, or use subprocess"

    def send(self, request: bytes, descriptors: list[int]) -> None:
        socket.send_fds(self._channel, [request], descriptors)

    def _stop(self) -> None:
        self._channel.close()
        self._process.wait(60)


@functools.cache
def _server(modules: tuple[str, ...], settings: tuple[tuple[str, str], ...]) -> _Server:
    return _Server(modules, settings)
