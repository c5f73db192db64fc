"""A process that has imported torch, or the collector, and forks a child per program.

A fresh interpreter spends about three seconds of CPU on importing torch and Ammeter before it trains; the suite runs
hundreds of such programs. A child of this server starts with these imports done and runs its script as __main__.
tests/forked.py is the client, which calls main() in a new interpreter.

The child differs from a fresh interpreter in these points only:
- site, .pth files, OMP_* and PYTHON* variables other than PYTHONPATH were read when the server started; a
  sitecustomize on PYTHONPATH is imported as site does, and finds torch not yet imported;
- the command line in /proc is the server's, and so is the parent;
- the modules named to the server are in sys.modules;
- torch has found no triton, whose library reports leaks at the end of an interpreter with frozen objects;
- at its end the interpreter clears the modules of the program and of Ammeter; the others that the server has imported,
  and C++ objects of torch, stay: destroying them copies all their pages, which takes longer than most programs run.
tests/fork_children.py makes the Python processes that a child starts forks too.
The server imports only: it computes nothing with torch and has one thread, so each child starts threads of its own.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import select
import socket
import sys
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import Any

from tests import fork_children

MAX_REQUEST_BYTES = 2**20
DESCRIPTORS = 4
"""Per request: stdin, stdout, stderr, and the pipe for process id and exit status."""

CLEARED = ("ammeter", "__main__", "sys", "builtins")
"""First letters of modules that the end of the interpreter clears, or needs."""

_kept: dict[str, ModuleType] = {}


def main(descriptor: int, modules: list[str]) -> None:
    """Imports the modules and serves requests from the socket until the client closes it.

    Also returns in each child when its program is done. descriptor: of the socket.
    """
    channel = socket.socket(fileno=descriptor)
    atexit.register(_keep_modules)  # the first one to be registered is the last one to be called
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
    _kept.update((name, module) for name, module in sys.modules.items() if not name.startswith(CLEARED))
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)  # after Python's end, in place of the destructors that C++ libraries have registered
    gc.collect()
    gc.freeze()  # a collection in the child would copy every page of what the server imported
    assert 1 == len(os.listdir("/proc/self/task")), "a module that the fork server imports has started a thread"
    request = _serve(channel)
    while request is not None and request["levels"]:
        child = fork_children.fork_server(request)
        if child is None:
            break
        _become(child)
        request = child
    if request is not None:
        _run_program(request, modules)


def _keep_modules() -> None:
    """Keeps what the server has imported from being cleared at the end of the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))
    for name in _kept:
        sys.modules.pop(name, None)


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
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                    os.close(stream)
                _become(request)
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


def _become(request: dict[str, Any]) -> None:
    """Gives this process the session, folder and environment of the request."""
    if request["session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if "numpy" in sys.modules:  # each interpreter seeds its own generator from the system's entropy
        sys.modules["numpy"].random.seed()


class _Imported:
    """Finds and loads again what the server has imported, so that import hooks of the program see it."""

    def __init__(self, names: list[str]) -> None:
        self._modules = {name: sys.modules.pop(name) for name in names}
        self._loaders = {name: module.__loader__ for name, module in self._modules.items()}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = self._modules[name].__spec__ if name in self._modules else None
        if spec is not None:
            spec.loader = self  # type: ignore[assignment] # import needs no base class
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loaders[module.__name__]
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__  # type: ignore[assignment] # the one that it was


def _import_sitecustomize(modules: list[str]) -> None:
    """Imports the sitecustomize of PYTHONPATH, before the modules of the server are imported."""
    for name in ("sitecustomize", "_ammeter_startup"):  # the server imports the second where a launcher runs elsewhere
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, _Imported([name for name in modules if name.split(".")[0] == "torch"]))
    import_module("sitecustomize")


def _run_program(request: dict[str, Any], modules: list[str]) -> None:
    """Runs `python ARGUMENTS` in this interpreter; the caller ends it.

    modules: those that the server has imported.
    """
    first, *words = request["arguments"]
    hook = sys.modules.get("ammeter.preparation.import_hook")
    if hook is not None:
        hook.install()
    folders = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    sys.path[1:1] = [folder for folder in folders if folder not in sys.path]
    sys.orig_argv = [sys.executable, first, *words]
    if any(os.path.exists(os.path.join(folder, "sitecustomize.py")) for folder in folders):
        _import_sitecustomize(modules)
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
