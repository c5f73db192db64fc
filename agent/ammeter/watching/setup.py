"""Turns the arguments of watch() into an attached session, its journal and its shipper."""

from __future__ import annotations

import gc
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ammeter import journal
from ammeter.environment.settings import disabled
from ammeter.environment.settings import settings as read_settings
from ammeter.preparation.memory import checkpoint_in_memory
from ammeter.preparation.notes import MODEL, FileRead, Notes, Restored
from ammeter.preparation.observer import Use, observer
from ammeter.preparation.optimizer_state import state_tensors
from ammeter.recording.session import Session, watching
from ammeter.redaction import process_redactor
from ammeter.tensors.hidden_reads import ORDINARY, is_ordinary, unseen
from ammeter.tensors.live_objects import instances, live_objects
from ammeter.torch_hooks.targets import Watched
from ammeter.torch_hooks.weak_id_set import WeakIdSet
from ammeter.watching import delivery
from ammeter.watching.arguments import Arguments, checked
from ammeter.watching.handle import Run
from ammeter.watching.process_exit import close_at_exit
from ammeter.watching.stream_hello import is_unobserved, make_hello, make_tags

if TYPE_CHECKING:
    from ammeter.environment.settings import Settings
    from ammeter.wire.frames import Hello

log = logging.getLogger("ammeter")


def watch(model: Any, optimizer: Any, scaler: Any, **options: Any) -> Run:
    """Implements ammeter.watch, with torch imported.

    Raises:
        TypeError, ValueError: only for invalid arguments or settings.
    """
    arguments = checked(model, optimizer, scaler, options)
    if disabled():
        return Run()
    try:
        settings = read_settings(options["url"], options["dir"], options["budget"])
    except OSError as error:
        return _unwatched(error)
    for guard in arguments.guards:
        if hasattr(guard, "prepare"):
            guard.prepare(_tags_with_baseline(arguments.options), settings.dir)
    notes_use = observer.use()  # before the previous run ends, which would discard the notes
    try:
        _end_previous(arguments.optimizers)
        return _start(_targets(arguments), settings, arguments, notes_use)
    except Exception as error:  # noqa: BLE001 - the promise: training starts whether we can watch it or not
        notes_use.remove()
        return _unwatched(error)


def _targets(arguments: Arguments) -> Watched:
    watched = Watched(arguments.models, arguments.optimizers, arguments.scalers)
    for name, copy in arguments.options["also"].items():
        watched.follow(process_redactor.words(name), copy)
    return watched


_own_streams: set[str] = set()
"""The streams of this process. A notebook that calls watch() again is the same attempt of its run."""

refused: list[str] = []
"""The reason of each failed watch(), as logged, for later queries."""


def _unwatched(error: Exception) -> Run:
    refused.append(f"{type(error).__name__}: {error}")
    with suppress(Exception):  # the program's log handler may raise
        log.warning("ammeter cannot watch this run (%s: %s); training goes on without it", type(error).__name__, error)
    return Run()


def _end_previous(optimizers: list[torch.optim.Optimizer]) -> None:
    """Ends earlier runs of the same objects, such as those of a rerun notebook cell.

    A run ends if its optimizers are gone or train the same parameters. Runs that train other parameters go on, as
    several runs in one program do.
    """
    previous = watching()
    if not previous:
        return
    gc.collect()  # optimizers are in reference cycles; objects that a rerun cell replaced may not be freed yet
    own = set(_parameters(optimizers))
    for session in previous:
        present = list(session.watched.optimizers)
        if not present:
            session.close("closed", "its optimizers are gone, and another run begins")
        elif not own.isdisjoint(_parameters(present)):
            session.close("closed", "another watch() of the same parameters replaces it")


def _parameters(optimizers: list[torch.optim.Optimizer]) -> Iterator[int]:
    return (
        id(parameter) for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"]
    )


def _tags_with_baseline(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the run's tags as sent, with the baseline named in tags or config."""
    baseline = options["tags"].get("baseline") or options["config"].get("baseline")
    return {**make_tags(options), "baseline": baseline}


def _start(watched: Watched, settings: Settings, arguments: Arguments, notes_use: Use) -> Run:
    options, guards = arguments.options, arguments.guards
    hello = make_hello(watched, options)
    folder = journal.private_folder(journal.private_folder(settings.dir) / hello.run)
    tmpfs = delivery.tmpfs_folder(hello)
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1)
    tmpfs_bytes = delivery.MAX_HOST_TMPFS_BYTES // ranks_here if tmpfs else 0
    writer = _journal_kind(guards)(folder / hello.stream, hot=tmpfs, hot_bytes=tmpfs_bytes)
    _own_streams.add(hello.stream)
    is_delivered = settings.url or tmpfs
    finish_start = delivery.begin_process(writer, settings) if is_delivered else None  # it starts beside what follows
    session = None
    await_delivery: Callable[[], None] = partial(delivery.await_delivery, writer.folder, settings)
    try:
        session = _session(watched, writer, hello, settings, options)
        session.attach()
        session.handles.append(notes_use)
        if guards:
            await_delivery = _attach_guards(session, writer, guards, await_delivery)
    except BaseException:
        if session is None:
            writer.close()
        else:
            session.close("exception")
        raise
    finally:
        if finish_start:
            finish_start()
    close_at_exit(session, await_delivery)
    return Run(hello.run, session, await_delivery, guards, hello.name, folder)


def _session(
    watched: Watched, writer: journal.Journal, hello: Hello, settings: Settings, options: Mapping[str, Any]
) -> Session:
    from ammeter.probes import ALL  # a large part of the agent, imported while the shipper starts

    notes = observer.take()
    notes.is_continued = _has_earlier_attempt(writer.folder.parent)
    with suppress(Exception):  # a finding less; the program's objects may be of any kind
        notes.strays = WeakIdSet(unseen(lambda: list(_strays(watched)), ()))
    if is_unobserved(watched):
        _add_loaded_checkpoint(notes, watched)
    replay = bool(options.get("replay"))
    return Session(watched, writer, hello, settings.budget, options["preset"], ALL, replay=replay, preparation=notes)


MAX_EXAMINED = 200_000
"""Tensors that are examined, the newest first, in at most 0.1 s: a data set may be a list of more."""


def _strays(watched: Watched) -> Iterator[torch.Tensor]:
    """Yields the other tensors in memory that have the shape of a weight: no gradients, no state of an optimizer."""
    weights = [tensor for _, tensor in watched.alive() if is_ordinary(tensor)]
    found = instances(*ORDINARY)
    if not set(map(id, weights)) <= set(map(id, found)):  # this version of Python or torch does not find them so
        found = live_objects(*ORDINARY)
    shapes = {weight.shape for weight in weights}
    states = (state for optimizer in watched.optimizers for _, _, state in state_tensors(optimizer))
    own = {id(tensor) for tensor in (*weights, *states, *(weight.grad for weight in weights if weight.is_leaf))}
    for tensor in found[: -MAX_EXAMINED - 1 : -1]:
        if _shape(tensor) in shapes and id(tensor) not in own and not watched.knows(tensor):
            yield tensor


def _shape(tensor: torch.Tensor) -> torch.Size | None:
    """The shape of a tensor of the program; None of one that has none, such as a nested tensor."""
    try:
        return tensor.shape
    except (RuntimeError, NotImplementedError, AttributeError):
        return None


def _add_loaded_checkpoint(notes: Notes, watched: Watched) -> None:
    """Adds a checkpoint that the program loaded unobserved, if it is still in memory."""
    models = [model for ref in watched.models if (model := ref()) is not None]
    with suppress(Exception):  # a finding less; the program's objects may be of any kind
        weights = [weight for model in models for weight in model.parameters()]
        contents = checkpoint_in_memory(weights, notes.strays)
        if contents is not None:
            notes.add(FileRead("", 0.0, contents))
            for model in models:
                notes.add(Restored(MODEL, weakref.ref(model), "", {"model": type(model).__name__}))


def _has_earlier_attempt(run_folder: Path) -> bool:
    """Returns whether a process that has ended has trained in this run before."""
    others = [stream for stream in journal.streams(run_folder) if stream.name not in _own_streams]
    return any(not journal.is_alive(stream) for stream in others)


def _journal_kind(guards: tuple[Any, ...]) -> type[journal.Journal]:
    if not guards:
        return journal.Journal
    from ammeter.guards.buffered_journal import BufferedJournal

    return BufferedJournal


def _attach_guards(
    session: Session, writer: Any, guards: tuple[Any, ...], await_delivery: Callable[[], None]
) -> Callable[[], None]:
    """Attaches the guards; returns a delivery wait that ends the guards first."""
    from ammeter.guards.runner import GuardRunner

    def end_run(message: str) -> None:
        if session.close("exception", message):
            await_delivery()

    def finish() -> None:
        runner.finish()
        await_delivery()

    runner = GuardRunner(session, writer, guards, end_run)
    session.handles += runner.attach()
    return finish
