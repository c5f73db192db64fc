"""Python processes that a forked program starts are forks too: no interpreter starts, nothing is imported again.

tests/forked.py asks for it with `levels`: 1 for the children of the program, 2 for their children as well.

A server process is forked before the program begins. In the program, the call behind subprocess and multiprocessing
asks this server for a fork where it would execute `sys.executable [-u] SCRIPT`, `-m` or `-c`; everything else is
executed as usual. The fork becomes a real child of the program, with the parent, process group, files, signal mask,
PDEATHSIG and wait status of an executed one, and imports the sitecustomize of its PYTHONPATH.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

MAX_REQUEST_BYTES = 2**20
MAX_DESCRIPTORS = 250
"""Linux passes at most 253 at once."""

HIGH_DESCRIPTOR = 512
"""Received files wait above this number until the numbers that the child expects are free."""

AT_START = ("PYTHON", "LD_", "OMP_", "MKL_", "KMP_", "TORCH_LOGS")
"""Prefixes of variables that are read once, by the interpreter or by torch at import."""

_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 2, 36

_libc = ctypes.CDLL(None)


def fork_server(request: dict[str, Any]) -> dict[str, Any] | None:
    """Forks the server of a program's children, before the program begins.

    request: that of the program. Returns None in the program, and the request in each child.
    """
    channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        channel.close()
        return _serve(theirs)
    theirs.close()
    starter = _Starter(channel, request)
    posix = sys.modules["_posixsubprocess"]
    starter.execute = posix.fork_exec
    posix.fork_exec = subprocess._fork_exec = starter.start  # type: ignore[attr-defined]
    return None


def at_start(environment: dict[str, str]) -> dict[str, str]:
    """Returns the variables that a fork cannot set."""
    return {name: value for name, value in environment.items() if name.startswith(AT_START) and name != "PYTHONPATH"}


class _Starter:
    """Replaces _posixsubprocess.fork_exec in the program. execute: the original."""

    execute: Callable[..., int]

    def __init__(self, channel: socket.socket, request: dict[str, Any]) -> None:
        self._channel = channel
        self._process = os.getpid()
        self._at_start = at_start(request["environment"])
        self._levels = request["levels"] - 1

    def start(self, args: Sequence[Any], *rest: Any) -> int:
        """Accepts the arguments of fork_exec. Returns the process id."""
        words = [os.fsdecode(word) for word in args]
        environment = dict(os.environ) if rest[4] is None else _environment(rest[4])
        own = self._process == os.getpid() and words[0] == sys.executable and self._at_start == at_start(environment)
        arguments = _without_flags(words[1:]) if own else None
        if arguments is None:
            return self.execute(args, *rest)
        _, close_all, keep, folder, _, into, _, _, out, _, err, _, errors, _, new_session, *_, prepare, _ = rest
        mask, death_signal = _prepared(prepare)
        kept = sorted(set(keep) - {errors} if close_all else _inheritable())
        request = {
            "arguments": arguments,
            "unbuffered": "-u" in words[1:3],
            "folder": os.fsdecode(folder or os.getcwd()),
            "environment": environment,
            "session": bool(new_session),
            "levels": self._levels,
            "parent": self._process,
            "mask": mask,
            "death_signal": death_signal,
            "kept": kept,
        }
        streams = [given if given != -1 else own for own, given in enumerate((into, out, err))]
        return self._request(request, [*streams, *kept])

    def _request(self, request: dict[str, Any], descriptors: list[int]) -> int:
        status, status_of_child = os.pipe()
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # the process between the server and the fork ends at once
        try:
            socket.send_fds(self._channel, [json.dumps(request).encode()], [*descriptors, status_of_child])
            os.close(status_of_child)
            data = os.read(status, 4)
        finally:
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)
            os.close(status)
        assert data, "the server of forks has ended"
        return int.from_bytes(data, "little")


def _serve(channel: socket.socket) -> dict[str, Any]:
    """Forks until the program has ended. Returns the request in each child."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # those to its process group
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):  # the readers of the program's output see its end
        os.dup2(null, number)
    os.close(null)
    while True:
        message, descriptors, *_ = socket.recv_fds(channel, MAX_REQUEST_BYTES, MAX_DESCRIPTORS)
        if not message:
            os._exit(0)
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            channel.close()
            request: dict[str, Any] = json.loads(message)
            _become_child(request, descriptors, between)
            return request
        os.waitpid(between, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def _become_child(request: dict[str, Any], descriptors: list[int], between: int) -> None:
    """Gives this process what an executed child of the program has.

    between: the process that is its parent until it ends. The caller sets folder, environment and session.
    """
    while os.getppid() == between:
        time.sleep(0.0002)
    if os.getppid() != request["parent"]:
        os._exit(1)
    _libc.prctl(_PR_SET_PDEATHSIG, request["death_signal"])
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    *files, status = high
    for number, file in zip([0, 1, 2, *request["kept"]], files, strict=True):
        os.dup2(file, number)
        os.close(file)
    if request["unbuffered"]:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    signal.pthread_sigmask(signal.SIG_SETMASK, request["mask"])
    os.write(status, os.getpid().to_bytes(4, "little"))
    os.close(status)


def _prepared(prepare: Callable[[], None] | None) -> tuple[list[int], int]:
    """Returns the signal mask and PDEATHSIG of a child in which preexec_fn has run."""
    if prepare is None:
        return _mask(), 0
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            prepare()
            number = ctypes.c_int()
            _libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(number))
            os.write(writer, json.dumps([_mask(), number.value]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    mask, death_signal = json.loads(os.read(reader, 4096))
    os.close(reader)
    return mask, death_signal


def _mask() -> list[int]:
    return sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ())))


def _without_flags(words: list[str]) -> list[str] | None:
    """Returns the words from the script, -m or -c on; None for a call that only a new interpreter can fulfil."""
    while words and (words[0] == "-u" or (words[0] == "-B" and sys.dont_write_bytecode)):
        words = words[1:]
    return words if words and (words[0] in ("-m", "-c") or not words[0].startswith("-")) else None


def _environment(variables: Sequence[bytes]) -> dict[str, str]:
    pairs = (os.fsdecode(variable).partition("=") for variable in variables)
    return {name: value for name, _, value in pairs}


def _inheritable() -> set[int]:
    """The files above the standard streams that a program leaves open for an executed child."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and os.get_inheritable(int(name)):
                found.add(int(name))
        except OSError:  # the listing's own
            continue
    return found
