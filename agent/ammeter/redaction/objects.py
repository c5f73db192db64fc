"""Reads the objects of a config without calling code of their classes."""

from __future__ import annotations

import numbers
import types
from collections.abc import Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from ammeter.redaction.key_words import words

_TEXT_TYPES = (
    *(str, bytes, bytearray, memoryview, range, type, Enum, BaseException),
    *(PurePath, date, time, timedelta, Decimal, UUID),
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, types.GeneratorType),
)
"""Types that are shown as text, not by their fields."""

_LIBRARIES = words("torch numpy pandas jax tensorflow re io _io logging threading _thread socket")

_SHORT_TYPES = ("device", "Size", "layout", "memory_format")
"""Types of torch and numpy, besides dtypes, whose values are short words."""


def is_a(value: Any, kinds: type | tuple[type, ...]) -> bool:
    """Replaces isinstance(), which calls the object's __class__ and may raise."""
    return issubclass(type(value), kinds)


def fields_of(value: Any) -> Mapping[str, Any] | None:
    """Returns the fields of an object by name, without calling code of its class.

    Returns None for an object without fields to show. For objects of torch and similar libraries, and for modules,
    classes and functions, the name is sufficient.
    """
    cls = type(value)
    if is_a(value, _TEXT_TYPES) or _is_library(cls):
        return None
    if is_a(value, tuple):
        names = getattr(cls, "_fields", None)
        return dict(zip(names, value, strict=True)) if isinstance(names, tuple) else None
    if is_a(value, (list, set, frozenset)):
        return None
    return (_slots(value) | _own_dict(value)) or None


def text_of(value: Any) -> str:
    """Converts any value to text.

    Tensors, arrays and modules contain data, so only the name of their class is used.
    """
    cls = type(value)
    if cls is str:
        return str(value)
    try:
        if not is_a(value, _TEXT_TYPES) and _is_library(cls) and not is_a(value, numbers.Number):
            name = cls.__name__
            if not name.endswith(_SHORT_TYPES) and not name.lower().endswith("dtype"):
                return f"<{name}>"
        return str.__str__(value) if is_a(value, str) and not is_a(value, Enum) else str(value)
    except Exception:  # noqa: BLE001 - an object of a stranger, whose __str__ may raise anything
        return f"<{cls.__name__}>"


def _slots(value: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for cls in type(value).__mro__:
        for name, slot in vars(cls).items():
            if isinstance(slot, types.MemberDescriptorType) and not name.startswith("__"):
                try:
                    fields[name] = slot.__get__(value, type(value))
                except AttributeError:  # a slot without a value
                    continue
    return fields


def _own_dict(value: Any) -> dict[str, Any]:
    """Returns the instance's own __dict__, even if its class redefines that name."""
    for cls in type(value).__mro__:
        slot = vars(cls).get("__dict__")
        if isinstance(slot, types.GetSetDescriptorType):
            own = slot.__get__(value)
            return (
                {name: field for name, field in own.items() if isinstance(name, str)} if isinstance(own, dict) else {}
            )
    return {}


def _is_library(cls: type) -> bool:
    return any(str(base.__module__).partition(".")[0] in _LIBRARIES for base in cls.__mro__)
