"""Points of a program that call back: subscribers, and groups of them that pause together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class HookPoint:
    """The subscribers to one event; a Group of them is paused and resumed together.

    Attributes:
        calls: for each part of a subscriber, such as before and after, the active callbacks.
        active: whether any callback is active.
    """

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._groups: dict[int, Group] = {}
        self._paused: frozenset[Group] = frozenset()
        self._calls_by_paused: dict[frozenset[Group], tuple[tuple[Any, ...], ...]] = {}
        self.subscribers: tuple[tuple[Any, ...], ...] = ()
        self._select()

    def join(self, subscriber: tuple[Any, ...]) -> Handle:
        self.subscribers += (subscriber,)
        self._reset()
        return Handle(self, subscriber)

    def leave(self, subscriber: tuple[Any, ...]) -> None:
        self.subscribers = tuple(other for other in self.subscribers if other is not subscriber)
        self._groups.pop(id(subscriber), None)
        self._reset()

    def assign(self, subscribers: Iterable[tuple[Any, ...]], group: Group) -> None:
        self._groups.update((id(subscriber), group) for subscriber in subscribers)
        self._reset()

    def pause(self, group: Group) -> None:
        self._paused |= {group}
        self._select()

    def resume(self, group: Group) -> None:
        self._paused -= {group}
        self._select()

    def _reset(self) -> None:
        self._paused &= set(self._groups.values())
        self._calls_by_paused.clear()
        self._select()

    def _select(self) -> None:
        """Updates the active callbacks; the result is cached per set of paused groups."""
        calls = self._calls_by_paused.get(self._paused)
        if calls is None:
            active = [
                subscriber for subscriber in self.subscribers if self._groups.get(id(subscriber)) not in self._paused
            ]
            calls = tuple(
                _joined(subscriber[part] for subscriber in active if subscriber[part]) for part in range(self._parts)
            )
            self._calls_by_paused[self._paused] = calls
        self.calls = calls
        self.active = any(calls)


class Handle:
    """One subscription. remove() ends it; a second call has no effect."""

    def __init__(self, hook_point: HookPoint, subscriber: tuple[Any, ...]) -> None:
        self.hook_point = hook_point
        self.subscriber = subscriber
        for handles in _open_blocks:
            handles.append(self)

    def remove(self) -> None:
        self.hook_point.leave(self.subscriber)


class AtEnd:
    """A handle that calls a function when it is removed."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def remove(self) -> None:
        call, self._call = self._call, lambda: None
        call()


class Group:
    """Subscriptions at any hook points that are paused and resumed together.

    A wrapper without active subscribers remains installed at negligible cost, so that nothing changes that
    torch.compile may have inspected.
    """

    def __init__(self, handles: Iterable[Any]) -> None:
        """Groups the instances of Handle; others are ignored."""
        subscribers: dict[HookPoint, list[tuple[Any, ...]]] = {}
        for handle in handles:
            if isinstance(handle, Handle):
                subscribers.setdefault(handle.hook_point, []).append(handle.subscriber)
        for hook_point, members in subscribers.items():
            hook_point.assign(members, self)
        self._hook_points = list(subscribers)

    def pause(self) -> None:
        for hook_point in self._hook_points:
            hook_point.pause(self)

    def resume(self) -> None:
        for hook_point in self._hook_points:
            hook_point.resume(self)


@contextmanager
def all_or_nothing() -> Iterator[None]:
    """Removes all subscriptions made inside if an error leaves the block."""
    handles: list[Handle] = []
    _open_blocks.append(handles)
    try:
        yield
    except BaseException:
        for handle in handles:
            handle.remove()
        raise
    finally:
        _open_blocks.pop()


def _joined(callbacks: Iterable[Any]) -> tuple[Any, ...]:
    """Returns the callbacks in their order, with joinable neighbours joined into one.

    A joinable callback has `part` and `join`: join(parts) is a callback that does all of them.
    """
    groups: list[list[Any]] = []
    for callback in callbacks:
        if groups and _can_join(groups[-1][-1], callback):
            groups[-1].append(callback)
        else:
            groups.append([callback])
    return tuple(group[0] if len(group) == 1 else group[0].join([member.part for member in group]) for group in groups)


def _can_join(one: Any, other: Any) -> bool:
    return hasattr(one, "join") and getattr(other, "join", None) == one.join


_open_blocks: list[list[Handle]] = []
"""The subscriptions made in each open all_or_nothing block."""


def owner_of(kind: type, name: str) -> type:
    """Returns the class in which a method is defined. Raises AttributeError if the name is unknown."""
    owner = next((base for base in kind.__mro__ if name in vars(base)), None)
    if owner is None:
        raise AttributeError(f"{kind.__name__} has no method {name!r}")
    return owner
