"""From the arguments of watch() to an attached session, its journal and its shipper."""

from __future__ import annotations

import atexit
import logging
import multiprocessing.util
import os
import platform
import re
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ammeter import __version__, identity, journal
from ammeter.run import Run
from ammeter.session import Session
from ammeter.settings import Settings, settings
from ammeter.watched import Watched
from ammeter.wire import Hello, Schema

log = logging.getLogger("ammeter")

PRESETS = ("light", "default", "full")
HOT_FOLDER = Path("/dev/shm")  # noqa: S108 - a private folder is made in it
HOT_FREE_BYTES = 256 * 2**20
HOT_HOST_BYTES = 16 * 2**20
"""tmpfs for open segments is used where this much is free, and all ranks of a host together take at most 16 MiB."""

_SECRET = re.compile(r"secret|token|password|passwd|api_?key|credential|private", re.IGNORECASE)


def watch(model: Any, optimizer: Any, scaler: Any, **options: Any) -> Run:
    """What ammeter.watch does, with torch imported. Raises TypeError or ValueError for arguments only."""
    chosen = settings(options["url"], options["dir"], options["budget"])
    preset = options["preset"]
    if preset not in PRESETS:
        raise ValueError(f"preset is {preset!r}; use one of {', '.join(PRESETS)}")
    watched = Watched(
        _several(model, torch.nn.Module, "model"),
        _several(optimizer, torch.optim.Optimizer, "optimizer"),
        _several(scaler, torch.amp.GradScaler, "scaler"),
    )
    if chosen.disabled:
        return Run()
    try:
        return _start(watched, chosen, options)
    except Exception as error:  # noqa: BLE001 - the promise: training starts whether we can watch it or not
        log.warning("ammeter cannot watch this run (%s: %s); training goes on without it", type(error).__name__, error)
        return Run()


def _start(watched: Watched, chosen: Settings, options: Mapping[str, Any]) -> Run:
    hello = _hello(watched, options)
    folder = journal.private_folder(journal.private_folder(chosen.dir) / hello.run)
    hot = _hot_folder(hello) if chosen.url else None
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1)
    writer = journal.Journal(folder / hello.stream, hot=hot, hot_bytes=HOT_HOST_BYTES // ranks_here if hot else 0)
    session = Session(watched, writer, hello, chosen.budget, options["preset"])
    try:
        session.attach()
    except BaseException:
        session.close("exception")
        raise
    if chosen.url:
        from ammeter import ship

        refused = ship.start(folder, chosen.url, chosen.token)
        if refused:
            log.warning("ammeter: %s", refused)
    run = Run(hello.run, session, lambda: _await_delivery(folder / hello.stream, chosen) if chosen.url else None)
    _close_at_exit(run, session)
    return run


def _hello(watched: Watched, options: Mapping[str, Any]) -> Hello:
    project = options["project"] or "default"
    run, said = identity.run_id(project)
    rank, world_size = identity.rank()
    return Hello(
        run=run,
        stream=uuid.uuid4().hex,
        schema=Schema(),
        rank=rank,
        world_size=world_size,
        host=identity.host(),
        pid=os.getpid(),
        started=time.time_ns(),
        name=options["name"] or said or Path(sys.argv[0] or "python").stem,
        project=project,
        config={str(key): _plain(str(key), value) for key, value in options["config"].items()},
        tags={str(key): str(value) for key, value in options["tags"].items()},
        environment=_environment(watched),
    )


def _environment(watched: Watched) -> dict[str, str]:
    found = {"torch": str(torch.__version__), "python": platform.python_version(), "ammeter": __version__}
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name()
        found["cuda"] = str(torch.version.cuda)
    else:
        found["device"] = platform.machine()
    dtypes = sorted({tensor.dtype for tensor in watched.tensors})
    return {**found, "dtypes": ",".join(dtypes)}


def _plain(key: str, value: Any) -> Any:
    """A config value as it may be sent: plain data as it is, anything else as text, a secret not at all."""
    if _SECRET.search(key):
        return "(not sent)"
    if isinstance(value, Mapping):
        return {str(name): _plain(str(name), each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(key, each) for each in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _hot_folder(hello: Hello) -> Path | None:
    """Where the open segment lies, so that no write of ours waits behind somebody else's dirty pages."""
    try:
        free = os.statvfs(HOT_FOLDER)
        if free.f_bavail * free.f_frsize < HOT_FREE_BYTES:
            return None
        mine = journal.private_folder(HOT_FOLDER / f"ammeter-{os.geteuid()}")
        return journal.private_folder(mine / hello.run) / hello.stream
    except OSError:
        return None


def _await_delivery(folder: Path, chosen: Settings) -> None:
    """Waits until the collector has everything, bounded: what ends this process may end the shipper too."""
    deadline = time.monotonic() + chosen.flush
    end = journal.end_of(folder)
    while time.monotonic() < deadline and journal.acknowledged(folder) < end:
        time.sleep(0.01)


def _close_at_exit(run: Run, session: Session) -> None:
    """A process that ends says so: by atexit, and where multiprocessing ends a child without it, by its Finalize."""

    def ended() -> None:
        error = getattr(sys, "last_value", None)
        if error is not None:
            session.close("exception", f"{type(error).__name__}: {error}"[:500])
        else:
            session.close("exit")
        run.close()

    atexit.register(ended)
    finalizer = multiprocessing.util.Finalize(None, ended, exitpriority=100)

    def forget() -> None:
        atexit.unregister(ended)
        finalizer.cancel()

    session.on_close(forget)


def _several(given: Any, kind: type, what: str) -> list[Any]:
    found = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    for each in found:
        if not isinstance(each, kind):
            raise TypeError(f"{what} is a {type(each).__name__}; watch() takes a {kind.__name__} or a list of them")
    return found
