"""The session interface for probes: subscriptions, and the state they read and write."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from ammeter.journal import Journal
    from ammeter.preparation.notes import Notes
    from ammeter.recording.directives.inbox import Inbox
    from ammeter.recording.fast_path import FastPath
    from ammeter.recording.loss_level import LossLevel
    from ammeter.recording.losses import Losses
    from ammeter.recording.own_scale import OwnScale
    from ammeter.recording.row import Row
    from ammeter.recording.row_queue import RowQueue
    from ammeter.recording.schedule.budget import Governor
    from ammeter.recording.stream_columns import StreamColumns
    from ammeter.torch_hooks.closures import Closure
    from ammeter.torch_hooks.forward_calls import Forward
    from ammeter.torch_hooks.targets import Watched

Guard = Callable[[Callable[..., None]], Callable[..., None]]
"""Makes a callback safe to pass to torch; see Guarded.guard()."""


class ProbeContext(Protocol):
    """The session as a probe sees it.

    Attributes:
        row: the row of the open step.
        follows: whether this is a followed step.
        working: whether the program has begun work on the open step.
        thread: the ident of the training thread.
        replay: whether bad steps are replayed.
        preparation: the calls that prepared this training, before watch() and after it.
    """

    row: Row
    watched: Watched
    forward: Forward
    closure: Closure
    governor: Governor
    journal: Journal
    columns: StreamColumns
    directives: Inbox
    own_scale: OwnScale
    losses: Losses
    loss_level: LossLevel
    rows: RowQueue
    fast_path: FastPath
    follows: bool
    working: bool
    thread: int
    replay: bool
    preparation: Notes

    @property
    def last_step(self) -> int: ...

    def guard(self, name: str, *, any_thread: bool = True) -> Guard: ...
    def while_following(self, handles: list[Any]) -> list[Any]: ...
    def trains_here(self) -> bool: ...
    def take_overhead(self) -> float: ...
    def charge(self, seconds: float) -> None: ...
    def emit(self, event: str, data: dict[str, Any]) -> None: ...
    def emit_late(self, event: str, data: dict[str, Any], step: int | None = None) -> None: ...


class ProbeKinds(NamedTuple):
    """The probe classes of a session.

    signals finish a row in this order, then user; resources closes every step.
    """

    signals: tuple[Any, ...]
    resources: Any
    user: Any
