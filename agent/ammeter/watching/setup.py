"""Turns the arguments of watch() into an attached session, its journal and its shipper."""

from __future__ import annotations

import atexit
import gc
import logging
import multiprocessing.util
import os
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ammeter import journal
from ammeter.environment import command_line, identity
from ammeter.environment.settings import Settings, disabled, launched, settings, silenced, variables
from ammeter.probes import ALL as PROBES
from ammeter.recording.budget import PRESETS
from ammeter.recording.session import Session, watching
from ammeter.redaction import here
from ammeter.torch_hooks.targets import Watched
from ammeter.verdicts import silence
from ammeter.watching.handle import Run, auto_watchers
from ammeter.watching.run_facts import environment
from ammeter.wire.frames import Hello, Schema
from ammeter.wire.metric_directions import BETTER, check_direction

log = logging.getLogger("ammeter")

HOT_FOLDER = Path("/dev/shm")  # noqa: S108 - a private folder is made in it
HOT_FREE_BYTES = 256 * 2**20
HOT_HOST_BYTES = 16 * 2**20
"""Open segments use tmpfs if HOT_FREE_BYTES are free; all ranks of a host together take at most HOT_HOST_BYTES (16
MiB)."""

_DICTS = {
    "config": "vars(arguments)",
    "tags": "{'team': 'vision'}",
    "better": "{'val_accuracy': 'higher'}",
    "also": "{'ema': ema_model}",
}


def watch(model: Any, optimizer: Any, scaler: Any, **options: Any) -> Run:
    """Implements ammeter.watch, with torch imported.

    Raises:
        TypeError, ValueError: only for invalid arguments or settings.
    """
    if options["preset"] not in PRESETS:
        raise ValueError(f"preset is {options['preset']!r}; use one of {', '.join(PRESETS)}")
    options = _with_launchers({"better": {}, **options})
    for name, example in _DICTS.items():
        if not isinstance(options[name], Mapping):
            raise TypeError(f"{name} is a {type(options[name]).__name__}; watch() takes a dict, such as {example}")
    for name, copy in options["also"].items():
        if not isinstance(copy, torch.nn.Module):
            raise TypeError(
                f"also[{name!r}] is a {type(copy).__name__}; watch() takes a Module, such as a copy of the model"
            )
    _silenced(options["tags"])
    for name, direction in {**options["better"], **_directions(options["tags"])}.items():
        check_direction(name, direction)
    models = _several(model, torch.nn.Module, "model")
    optimizers = _several(optimizer, torch.optim.Optimizer, "optimizer")
    scalers = _several(scaler, torch.amp.GradScaler, "scaler")
    guards = _guards(options["guards"], models)
    if disabled():
        return Run()
    try:
        chosen = settings(options["url"], options["dir"], options["budget"])
    except OSError as error:
        return _unwatched(error)
    for guard in guards:
        if hasattr(guard, "prepare"):
            guard.prepare(_said_of_a_baseline(options), chosen.dir)
    try:
        _end_those_before(optimizers)
        watched = Watched(models, optimizers, scalers)
        for name, copy in options["also"].items():
            watched.follow(here.words(name), copy)
        return _start(watched, chosen, options, guards)
    except Exception as error:  # noqa: BLE001 - the promise: training starts whether we can watch it or not
        return _unwatched(error)


def _with_launchers(options: dict[str, Any]) -> dict[str, Any]:
    """Merges the options of `ammeter run` into the program's, which have priority.

    Without any config, the script's command-line options are the config.
    """
    if not auto_watchers or not all(isinstance(options[name], Mapping) for name in ("config", "tags")):
        return options
    said = launched()
    config = {**said.config, **options["config"]} or command_line.parse(sys.argv[1:])
    return options | {"config": config, "tags": {**said.tags, **options["tags"]}}


def _directions(tags: Mapping[Any, Any]) -> dict[str, Any]:
    """Returns the directions in tags of the form better.NAME."""
    return {str(key)[len(BETTER) :]: value for key, value in tags.items() if str(key).startswith(BETTER)}


refused: list[str] = []
"""The reason of each failed watch(), as logged, for later queries."""


def _unwatched(error: Exception) -> Run:
    refused.append(f"{type(error).__name__}: {error}")
    with suppress(Exception):  # the program's log handler may raise
        log.warning("ammeter cannot watch this run (%s: %s); training goes on without it", type(error).__name__, error)
    return Run()


def _end_those_before(optimizers: list[torch.optim.Optimizer]) -> None:
    """Ends earlier runs of the same objects, such as those of a rerun notebook cell.

    A run ends if its optimizers are gone or train the same parameters. Runs that train other parameters go on, as
    several runs in one program do.
    """
    before = watching()
    if not before:
        return
    gc.collect()  # optimizers are in reference cycles; objects that a rerun cell replaced may not be freed yet
    mine = set(_parameters(optimizers))
    for session in before:
        present = list(session.watched.optimizers)
        if not present:
            session.close("closed", "its optimizers are gone, and another run begins")
        elif not mine.isdisjoint(_parameters(present)):
            session.close("closed", "another watch() of the same parameters has taken over")


def _parameters(optimizers: list[torch.optim.Optimizer]) -> Iterator[int]:
    return (id(each) for optimizer in optimizers for group in optimizer.param_groups for each in group["params"])


def _guards(given: Any, models: list[torch.nn.Module]) -> tuple[Any, ...]:
    """Checks the guards; imports nothing if none is given."""
    if isinstance(given, list | tuple) and not given:
        return ()
    from ammeter import guards

    return guards.checked(given, models)


def _said_of_a_baseline(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the run's tags as sent, with the baseline named in tags or config."""
    named = options["tags"].get("baseline") or options["config"].get("baseline")
    return {**_tags(options), "baseline": named}


def _start(watched: Watched, chosen: Settings, options: Mapping[str, Any], guards: tuple[Any, ...]) -> Run:
    hello = _hello(watched, options)
    folder = journal.private_folder(journal.private_folder(chosen.dir) / hello.run)
    hot = _hot_folder(hello)
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1)
    writer = _journal(guards)(folder / hello.stream, hot=hot, hot_bytes=HOT_HOST_BYTES // ranks_here if hot else 0)
    replay = bool(options.get("replay"))
    session = Session(watched, writer, hello, chosen.budget, options["preset"], PROBES, replay=replay)

    def await_delivery() -> None:
        if chosen.url:
            _wait_for_collector(writer.folder, chosen)
        else:
            _bring_home(writer.folder, chosen.flush)

    try:
        session.attach()
        if guards:
            await_delivery = _on_duty(session, writer, guards, await_delivery)
        if chosen.url or hot:
            _start_process(writer, chosen)
    except BaseException:
        session.close("exception")
        raise
    _close_at_exit(session, await_delivery)
    return Run(hello.run, session, await_delivery, guards, hello.name, folder)


def _journal(guards: tuple[Any, ...]) -> type[journal.Journal]:
    if not guards:
        return journal.Journal
    from ammeter.guards.buffered_journal import BufferedJournal

    return BufferedJournal


def _on_duty(
    session: Session, writer: Any, guards: tuple[Any, ...], await_delivery: Callable[[], None]
) -> Callable[[], None]:
    """Attaches the guards; returns a delivery wait that ends the guards first."""
    from ammeter.guards.runner import GuardRunner

    def leave(message: str) -> None:
        if session.close("exception", message):
            await_delivery()

    def finish() -> None:
        duty.finish()
        await_delivery()

    duty = GuardRunner(session, writer, guards, leave)
    session._handles += duty.attach()
    return finish


def _hello(watched: Watched, options: Mapping[str, Any]) -> Hello:
    here.learn(variables())
    project = options["project"] or "default"
    run, said = identity.run_id(project)
    rank, world_size = identity.rank()
    config, tags = here.plain(options["config"]), here.tags(_tags(options))  # first: it registers the secrets
    return Hello(
        run=run,
        stream=uuid.uuid4().hex,
        schema=Schema(),
        rank=rank,
        world_size=world_size,
        host=identity.host(),
        pid=os.getpid(),
        started=time.time_ns(),
        name=here.words(options["name"] or said or Path(sys.argv[0] or "python").stem),
        project=here.words(project),
        config=config,
        tags=tags,
        environment={**environment(watched), "command": here.command(sys.argv)},
    )


def _tags(options: Mapping[str, Any]) -> dict[Any, Any]:
    """Returns the tags, with the directions of metrics and the silenced verdicts."""
    quiet = _silenced(options["tags"])
    better = {f"{BETTER}{name}": direction for name, direction in options["better"].items()}
    return {**options["tags"], **better, **({silence.TAG: quiet} if quiet else {})}


def _silenced(tags: Mapping[Any, Any]) -> str:
    """Returns the silenced verdicts, from the run's tag and AMMETER_SILENCE.

    Raises:
        ValueError: a name is not a verdict.
    """
    return ",".join(silence.names([str(tags.get(silence.TAG) or ""), silenced()]))


def _hot_folder(hello: Hello) -> Path | None:
    """Returns the tmpfs folder of the open segment, or None.

    On tmpfs, journal writes do not wait behind dirty pages of other processes.
    """
    try:
        free = os.statvfs(HOT_FOLDER)
        if free.f_bavail * free.f_frsize < HOT_FREE_BYTES:
            return None
        mine = journal.private_folder(HOT_FOLDER / f"ammeter-{os.geteuid()}")
        return journal.private_folder(mine / hello.run) / hello.stream
    except OSError:
        return None


def _start_process(writer: journal.Journal, chosen: Settings) -> None:
    """Starts the shipper, or the mirror if there is no collector.

    If the mirror cannot start, the journal is written to disk instead.
    """
    from ammeter.shipper import process as ship

    refused = ship.start(writer.folder.parent, chosen.url, chosen.token)
    if refused and not chosen.url:
        writer.leave_tmpfs()
        _bring_home(writer.folder, 0)
    elif refused:
        with suppress(Exception):  # the program's log handler may raise
            log.warning("ammeter: %s", refused)


def _bring_home(folder: Path, seconds: float) -> None:
    """Moves the journal from tmpfs to the stream's folder.

    Done before exit, because the container may end with this process.
    """
    from ammeter.shipper.disk_cap import Keeper

    deadline = time.monotonic() + seconds
    with suppress(OSError):  # the mirror keeps retrying
        while (held := journal.lock(folder / "shipper")) is None:
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)
        try:
            Keeper(folder).finish()
        finally:
            journal.unlock(held)


def _wait_for_collector(folder: Path, chosen: Settings) -> None:
    """Waits, at most chosen.flush seconds, until the collector has acknowledged everything.

    The event that ends this process may end the shipper, too.
    """
    deadline = time.monotonic() + chosen.flush
    with suppress(OSError):  # folder removed or unreadable: no acknowledgement will come
        end = journal.end_of(folder)
        while time.monotonic() < deadline and journal.acknowledged(folder) < end:
            time.sleep(0.01)
        if chosen.flush and journal.acknowledged(folder) < end:
            _tell_undelivered(folder, chosen)


def _tell_undelivered(folder: Path, chosen: Settings) -> None:
    from ammeter.shipper import process as ship

    run_folder = folder.parent
    with suppress(Exception):  # the program's log handler may raise
        said = (run_folder / ship.LOG).read_text(errors="replace").splitlines()
        said += [journal.refusal(folder)] if journal.refusal(folder) else []
        log.warning(
            "ammeter: after %g s %s has not taken all of this run; its shipper goes on trying and says: %s. "
            "Meanwhile: ammeter report %s",
            *(chosen.flush, here.text(chosen.url or ""), said[-1] if said else "nothing yet", run_folder),
        )


def _close_at_exit(session: Session, await_delivery: Callable[[], None]) -> None:
    """Closes the session when the process ends.

    Uses atexit, and multiprocessing's Finalize for children that end without atexit.
    """

    def ended() -> None:
        error = _fatal_error()
        if error is None:
            closed = session.close("exit")
        else:
            closed = session.close("exception", "".join(traceback.format_exception_only(error)).strip())
        if closed:
            await_delivery()

    atexit.register(ended)
    finalizer = multiprocessing.util.Finalize(None, ended, exitpriority=100)

    def forget() -> None:
        atexit.unregister(ended)
        finalizer.cancel()

    session.on_close(forget)


def _fatal_error() -> BaseException | None:
    """Returns the error that ends this process, if any.

    Either an uncaught error, or the one behind the exit code of a multiprocessing child.
    """
    error = sys.exc_info()[1] or (None if _is_interactive() else getattr(sys, "last_value", None))
    if isinstance(error, SystemExit):
        error = error.__context__ if error.code else None
    return error


def _is_interactive() -> bool:
    """Whether an error ends only a notebook cell or console line, not the program."""
    outer = getattr(sys, "last_traceback", None)
    return hasattr(sys, "ps1") or (outer is not None and outer.tb_frame.f_globals.get("__name__") == "code")


def _several(given: Any, kind: type, what: str) -> list[Any]:
    found = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    for each in found:
        if not isinstance(each, kind):
            raise TypeError(f"{what} is a {type(each).__name__}; watch() takes a {kind.__name__} or a list of them")
    return found
