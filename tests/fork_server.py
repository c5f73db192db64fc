"""A process that has imported torch, or the collector, and forks a child per program.

A fresh interpreter spends about three seconds of CPU on importing torch and Ammeter before it trains; the suite runs
hundreds of such programs. A child of this server starts with these imports done and runs its script as __main__.
tests/forked.py is the client, which calls main() in a new interpreter.

The child differs from a fresh interpreter in these points only:
- site, .pth files, OMP_* and PYTHON* variables other than PYTHONPATH were read when the server started;
- the command line in /proc is the server's, and so is the parent;
- the modules named to the server are in sys.modules;
- torch has found no triton, whose library reports leaks at the end of an interpreter with frozen objects.
The server imports only: it computes nothing with torch and has one thread, so each child starts threads of its own.
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import sys
from contextlib import suppress
from importlib import import_module
from types import TracebackType
from typing import Any

MAX_REQUEST_BYTES = 2**20
DESCRIPTORS = 4
"""Per request: stdin, stdout, stderr, and the pipe for process id and exit status."""


def main(descriptor: int, modules: list[str]) -> None:
    """Imports the modules and serves requests from the socket until the client closes it.

    Also returns in each child when its program is done. descriptor: of the socket.
    """
    channel = socket.socket(fileno=descriptor)
    sys.modules["triton"] = None  # type: ignore[assignment] # an import of it fails
    for module in modules:
        import_module(module)
    del sys.modules["triton"]
    for module in modules:
        if module.endswith(".__main__"):  # imported for its own imports; a child runs it anew
            del sys.modules[module]
    hook = sys.modules.get("ammeter.preparation.import_hook")
    if hook is not None:
        hook.remove()  # each child starts the notes itself, as its environment allows
    gc.collect()
    gc.freeze()  # a collection in the child would copy every page of what the server imported
    assert 1 == len(os.listdir("/proc/self/task")), "a module that the fork server imports has started a thread"
    request = _serve(channel)
    if request is not None:
        _run_program(request)


def _serve(channel: socket.socket) -> dict[str, Any] | None:
    """Forks until the client closes its end.

    Returns the request in a child, None in the server.
    """
    children: dict[int, tuple[int, int]] = {}  # process descriptor -> its id, the pipe for its status
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready != channel.fileno():
                poll.unregister(ready)
                _report(ready, *children.pop(ready))
                continue
            message, descriptors, *_ = socket.recv_fds(channel, MAX_REQUEST_BYTES, DESCRIPTORS)
            if not message:
                return None
            *streams, status = descriptors
            child = os.fork()
            if child == 0:
                channel.close()
                for process, (_, pipe) in children.items():
                    os.close(process)
                    os.close(pipe)
                os.close(status)
                request: dict[str, Any] = json.loads(message)
                _become(request, streams)
                return request
            for stream in streams:
                os.close(stream)
            process = os.pidfd_open(child)
            children[process] = child, status
            poll.register(process, select.POLLIN)
            _write(status, child)


def _report(process: int, child: int, status: int) -> None:
    os.close(process)
    _write(status, os.waitpid(child, 0)[1])
    os.close(status)


def _write(pipe: int, number: int) -> None:
    with suppress(BrokenPipeError):  # the client has stopped waiting for this process
        os.write(pipe, number.to_bytes(4, "little"))


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Gives this process the session, folder, environment and standard streams of the request."""
    if request["session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if "numpy" in sys.modules:  # each interpreter seeds its own generator from the system's entropy
        sys.modules["numpy"].random.seed()


def _run_program(request: dict[str, Any]) -> None:
    """Runs `python ARGUMENTS` in this interpreter; the caller ends it."""
    first, *words = request["arguments"]
    hook = sys.modules.get("ammeter.preparation.import_hook")
    if hook is not None:
        hook.install()
    folders = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[1:1] = [folder for folder in folders if folder not in sys.path]
    sys.orig_argv = [sys.executable, first, *words]
    main = vars(sys.modules["__main__"])
    for name in [name for name in main if not name.startswith("__")]:
        del main[name]
    main["__doc__"] = main["__spec__"] = None
    try:
        if first == "-m":
            import runpy

            sys.argv, sys.path[0] = ["-m", *words[1:]], os.getcwd()
            runpy._run_module_as_main(words[0])  # type: ignore[attr-defined] # what `python -m` itself calls
        elif first == "-c":
            main.pop("__file__", None)
            sys.argv, sys.path[0] = ["-c", *words[1:]], ""
            exec(compile(words[0], "<string>", "exec"), main)
        else:
            main["__file__"] = os.path.abspath(first)
            sys.argv, sys.path[0] = [first, *words], os.path.dirname(os.path.realpath(first))
            with open(first, "rb") as script:
                code = compile(script.read(), main["__file__"], "exec")
            exec(code, main)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - the error of the program, reported as an interpreter would
        error.__traceback__ = _of_program(error.__traceback__)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(1) from None


def _of_program(frames: TracebackType | None) -> TracebackType | None:
    """Removes the frames of this file and runpy, which a fresh interpreter does not show."""
    while frames and frames.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        frames = frames.tb_next
    return frames
