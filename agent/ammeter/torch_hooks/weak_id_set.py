"""A set of weakly referenced objects, by identity."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

Member = TypeVar("Member")


class WeakIdSet(Generic[Member]):
    """A set of weak references by identity.

    Unlike a WeakSet it tests membership without hashing, which happens several times per step.
    """

    def __init__(self, members: Iterable[Member]) -> None:
        self._refs: dict[int, weakref.ref[Member]] = {}
        for member in members:
            self.add(member)

    def add(self, member: Member) -> None:
        self._refs[id(member)] = weakref.ref(member)

    def __contains__(self, candidate: object) -> bool:
        ref = self._refs.get(id(candidate))
        return ref is not None and ref() is candidate

    def __iter__(self) -> Iterator[Member]:
        return iter([member for ref in self._refs.values() if (member := ref()) is not None])

    def may_have_any(self) -> bool:
        """Whether there are members, dead or alive."""
        return bool(self._refs)

    def at_most_one(self) -> bool:
        return len(self._refs) < 2 or len(self) < 2

    def __len__(self) -> int:
        """Removes dead references and returns the number of live objects."""
        for key in [key for key, ref in self._refs.items() if ref() is None]:
            del self._refs[key]
        return len(self._refs)
