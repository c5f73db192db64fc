"""Removes secrets from a program's data: config, tags, names, errors, events, command line.

This package alone decides what is withheld. A value is withheld because of its key (keys.py), because of its form
(patterns.py), or because it was withheld before: a Redactor removes such values from all later text.
"""

from __future__ import annotations

import json
import numbers
import re
import shlex
import types
from collections.abc import Container, Iterator, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from ammeter.redaction.keys import Kind, is_quantity, kind, words
from ammeter.redaction.patterns import GONE as GONE
from ammeter.redaction.patterns import cut, is_number
from ammeter.wire.frames import Block, Bye, Event, Frame, Hello, Lost, Schema, Steps
from ammeter.wire.metric_directions import BETTER, DIRECTIONS

MAX_WORDS = 10_000
"""Length limit of a name, a tag or a config value, in characters."""

MAX_DEPTH = 16
MAX_VALUES = 20_000
"""Limits of depth and number of values in a config; values beyond them are not sent."""

BEYOND = "(not sent: too deep or too long)"

MIN_KNOWN_CHARS, _MAX_KNOWN = 8, 1_000
"""A withheld value of at least this many characters is searched for in all other text. At most _MAX_KNOWN values are
searched for."""

_REMEMBERED, _REMEMBERED_CHARACTERS = 4_096, 300
"""Number and length of the texts whose result is cached: names of tensors, lines, reasons."""

_MARGIN = 2_000
"""Characters at the end of a truncated text that are removed too, because a secret may be cut in two there."""


Said = TypeVar("Said", bound=Frame | Block)

_SAID = ("config", "tags", "environment", "name", "project", "host")
"""Fields of a hello that contain values from a program or its launcher."""


class Redactor:
    """Withholds secrets. No method raises because of a program's values."""

    def __init__(self, *, remembers: bool) -> None:
        """remembers: whether withheld values are removed from all other text too.

        Use it for the values of one process, not of many.
        """
        self._remembers = remembers
        self._known: set[str] = set()
        self._longest_first: list[str] = []
        self._seen: dict[str, str] = {}
        self._hello: tuple[Hello, Hello] | None = None
        self._tensors: tuple[Any, Any] = (), ()

    def learn(self, variables: Mapping[str, str]) -> None:
        """Withholds the values of secret environment variables wherever they appear later."""
        for name, value in variables.items():
            if _names_secret(name, value):
                self._withhold(value, kind(name))

    def text(self, said: str) -> str:
        """Returns the text without its secrets."""
        clean = self._seen.get(said)
        if clean is None:
            clean = said
            for each in self._longest_first:
                clean = clean.replace(each, GONE)
            clean = cut(clean)
            if len(said) <= _REMEMBERED_CHARACTERS and len(self._seen) < _REMEMBERED:
                self._seen[said] = clean
        return clean

    def words(self, value: Any, most: int = MAX_WORDS) -> str:
        """Converts any value to text without secrets that can be written anywhere.

        The text is truncated, and characters that UTF-8 cannot encode are replaced.
        """
        said, longest = _str(value), 2 * most + _MARGIN
        said = self.text(said[:longest])[:-_MARGIN] if len(said) > longest else self.text(said)
        return said[:most].encode("utf-8", "replace").decode()

    def plain(self, value: Any, key: str = "") -> Any:
        """Returns a config value without secrets: plain data, fields of objects, or text."""
        return _Descent(self).value(value, key, "", Kind.PLAIN)

    def tags(self, tags: Mapping[Any, Any]) -> dict[str, str]:
        """Returns tags without secrets. Users search runs by them."""
        found: dict[str, str] = {}
        for key, value in tags.items():
            is_direction = _is(key, str) and key.startswith(BETTER) and _is(value, str) and value in DIRECTIONS
            said = {self.words(key): value} if is_direction else self.plain({key: value})
            for name, each in said.items():
                found[_new(name, found)] = each if isinstance(each, str) else self.words(each)
        return found

    def fact(self, name: str, value: str) -> str:
        """Returns a fact about the environment of a run without secrets.

        The fact's name may come from the program.
        """
        return self.words(self.plain(value, name))

    def command(self, argv: Sequence[str]) -> str:
        """Returns a command line without secrets, in shell syntax."""
        return self.words(shlex.join(_str(each) for each in self._list([_str(each) for each in argv])))

    def frame(self, frame: Said) -> Said:
        """Returns a frame without secrets in its values from the program."""
        if type(frame) is Steps or type(frame) is Lost:
            return frame
        try:
            clean: Said = self._frame(frame)
        except (RecursionError, MemoryError):  # content that could not be searched is not written
            if isinstance(frame, Hello):
                return msgspec.structs.replace(frame, config={}, tags={}, environment={})
            if isinstance(frame, Bye):
                return msgspec.structs.replace(frame, message="")
            return msgspec.structs.replace(frame, data={})
        return clean

    def _frame(self, frame: Any) -> Any:
        if isinstance(frame, Event):
            data = self._said(frame.data)
            name = self.text(frame.name)
            if data is frame.data and name == frame.name:
                return frame
            return msgspec.structs.replace(frame, name=name, data=data)
        if isinstance(frame, Bye):
            message = self.text(frame.message)
            return frame if message == frame.message else msgspec.structs.replace(frame, message=message)
        return self.hello(frame) if isinstance(frame, Hello) else frame

    def hello(self, hello: Hello, *, columns: bool = True) -> Hello:
        """Returns a hello without secrets; the function is idempotent.

        columns: whether the names of columns are searched too, which changes the id of the schema.
        """
        known = self._hello
        if known is None or any(getattr(known[0], name) is not getattr(hello, name) for name in _SAID):
            clean = msgspec.structs.replace(
                hello,
                config=self.plain(hello.config),
                tags=self.tags(hello.tags),
                environment={self.words(name): self.fact(name, value) for name, value in hello.environment.items()},
                **{name: self.words(getattr(hello, name)) for name in ("name", "project", "host")},
            )
            known = self._hello = hello, clean
        said = {name: getattr(known[1], name) for name in _SAID}
        return msgspec.structs.replace(hello, schema=self._schema(hello.schema) if columns else hello.schema, **said)

    def _schema(self, schema: Schema) -> Schema:
        """Removes secrets from the names of columns and tensors.

        Tensors are many and stay the same, so all their names are searched at once first.
        """
        given, tensors = self._tensors
        if schema.tensors is not given:
            together = "\n".join(each.name for each in schema.tensors)
            clean = self.text(together) == together
            renamed = [msgspec.structs.replace(each, name=self.words(each.name)) for each in schema.tensors]
            tensors = schema.tensors if clean else tuple(renamed)
            self._tensors = schema.tensors, tensors
        scalars: dict[str, None] = {}
        for name in schema.scalars:
            scalars[_new(self.text(name), scalars)] = None
        if tensors is schema.tensors and tuple(scalars) == schema.scalars:
            return schema
        return msgspec.structs.replace(schema, scalars=tuple(scalars), tensors=tensors)

    def _said(self, data: Any) -> Any:
        """Returns the data of an event without secrets; the same object if there are none."""
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, dict):
            found: dict[str, Any] = {}
            changed = False
            for key, each in data.items():
                name, value = self.text(key), each
                if type(each) is not float and type(each) is not int:
                    hidden = isinstance(each, str) and kind(key) is Kind.SECRET and _hides(each)
                    value = GONE if hidden else self._said(each)
                if name is not key or value is not each:
                    changed = changed or name != key or value != each
                    name = _new(name, found)
                found[name] = value
            return found if changed else data
        if isinstance(data, list | tuple):
            several = [each if type(each) is float or type(each) is int else self._said(each) for each in data]
            return data if several == list(data) else several
        return data

    def _list(self, values: Sequence[Any]) -> list[Any]:
        return _Descent(self).several(values, "", "", Kind.PLAIN)

    def _withhold(self, value: Any, found: Kind = Kind.SECRET) -> str:
        """Records a secret for later texts, and returns its replacement.

        found: the kind of its key. Values of the kind TEXT that are plain words, such as names of layers and columns,
        are not recorded.
        """
        if _is(value, str) and not (found is Kind.TEXT and _PLAIN_WORDS.fullmatch(value)):
            self._learn(value)
        return GONE

    def _learn(self, value: str) -> None:
        for each in {value.strip(), *_parts_of(value)} if self._remembers else ():
            if _is_telling(each) and each not in self._known and len(self._known) < _MAX_KNOWN:
                self._known.add(each)
                self._longest_first = sorted(self._known, key=len, reverse=True)
                self._seen = {}


class _Descent:
    """One traversal of a config, with its remaining values and the objects being visited."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._left = MAX_VALUES
        self._inside: set[int] = set()

    def value(self, value: Any, key: str, parent: str, inherited: Kind) -> Any:
        """Returns a value without secrets. inherited: the kind of the keys above it."""
        self._left -= 1
        found = kind(key, parent) if key else Kind.PLAIN
        found = inherited if found is Kind.PLAIN else found
        if value is None or _is(value, bool):
            return value
        if _is(value, str):
            return self._text(value, key, found)
        if _is(value, numbers.Number):
            return self._number(value, key, found)
        if self._left < 0 or len(self._inside) >= MAX_DEPTH or id(value) in self._inside:
            return BEYOND
        self._inside.add(id(value))
        try:
            return self._whole(value, key, found)
        except Exception:  # noqa: BLE001 - an object of a stranger, whose methods may raise anything
            return f"<{type(value).__name__}>"
        finally:
            self._inside.discard(id(value))

    def _whole(self, value: Any, key: str, found: Kind) -> Any:
        fields = value if _is(value, Mapping) else fields_of(value)
        if fields is not None:
            return self._mapping(fields, key, found)
        if _is(value, (list, tuple, set, frozenset)):
            if found is Kind.SECRET:
                self.several(list(value), key, "", found)  # records each of them
                return GONE
            return self.several(list(value), key, "", found)
        return self._text(_str(value), key, found)

    def _mapping(self, fields: Mapping[Any, Any], key: str, found: Kind) -> dict[str, Any]:
        made: dict[str, Any] = {}
        said = _named_pair(fields)
        for name, each in fields.items():
            if self._left < 0:
                made[_new(BEYOND, made)] = ""
                break
            own = _str(name)
            if said and own.lower() in ("value", "content", "default"):
                made[_new(own, made)] = self.value(each, said, key, found)
            else:
                made[_new(self._redactor.words(own), made)] = self.value(each, own, key, found)
        return made

    def several(self, values: Sequence[Any], key: str, parent: str, found: Kind) -> list[Any]:
        """Returns the members of a list; their keys may be in the list itself.

        In an argv an option is the key of the next member, in a pair the name is the key of the value.
        """
        made: list[Any] = []
        for at, each in enumerate(values):
            if self._left < 0:
                made.append(BEYOND)
                break
            before = values[at - 1] if at else None
            asked = _asked_by(before, each, pair=len(values) == 2) if isinstance(before, str) else ""
            made.append(self.value(each, asked or key, "" if asked else parent, found))
        return made

    def _text(self, said: str, key: str, found: Kind) -> str:
        counts = is_number(said) and (found is Kind.COUNT or is_quantity(key))
        if found is not Kind.PLAIN and _hides(said) and not counts:
            return self._redactor._withhold(said, found)
        is_json = said[:1] in ("{", "[") and len(said) <= MAX_WORDS
        return self._redactor.words(self._json(said) if is_json else said)

    def _json(self, said: str) -> str:
        """Removes secrets from JSON in a text. The text is unchanged if it contains none."""
        try:
            inside = json.loads(said)
            clean = self.value(inside, "", "", Kind.PLAIN)
            return said if clean == inside else json.dumps(clean)
        except (ValueError, RecursionError):
            return said

    def _number(self, value: Any, key: str, found: Kind) -> Any:
        if found is Kind.SECRET and not is_quantity(key):
            return self._redactor._withhold(_str(value))
        if _is(value, numbers.Integral) and int(value).bit_length() < 64:
            return int(value)
        if _is(value, numbers.Real) and not _is(value, numbers.Rational):
            return float(value)
        return self._redactor.words(value)


def text(said: str, most: int) -> str:
    """Returns foreign text that can be written anywhere: without secrets, truncated, valid UTF-8."""
    return here.words(said, most)


def fields_of(value: Any) -> Mapping[str, Any] | None:
    """Returns the fields of an object by name, without calling code of its class.

    Returns None for an object without fields to show. For objects of torch and similar libraries, and for modules,
    classes and functions, the name is sufficient.
    """
    kind_of = type(value)
    if _is(value, _AS_TEXT) or _is_library(kind_of):
        return None
    if _is(value, tuple):
        names = getattr(kind_of, "_fields", None)
        return dict(zip(names, value, strict=True)) if isinstance(names, tuple) else None
    if _is(value, (list, set, frozenset)):
        return None
    found: dict[str, Any] = {}
    for each in kind_of.__mro__:
        for name, slot in vars(each).items():
            if isinstance(slot, types.MemberDescriptorType) and not name.startswith("__"):
                try:
                    found[name] = slot.__get__(value, kind_of)
                except AttributeError:  # a slot without a value
                    continue
    found |= _own_dict(value)
    return found or None


def _own_dict(value: Any) -> dict[str, Any]:
    """Returns the instance's own __dict__, even if its class redefines that name."""
    for each in type(value).__mro__:
        slot = vars(each).get("__dict__")
        if isinstance(slot, types.GetSetDescriptorType):
            held = slot.__get__(value)
            return (
                {name: each for name, each in held.items() if isinstance(name, str)} if isinstance(held, dict) else {}
            )
    return {}


_AS_TEXT = (
    *(str, bytes, bytearray, memoryview, range, type, Enum, BaseException),
    *(PurePath, date, time, timedelta, Decimal, UUID),
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, types.GeneratorType),
)

_LIBRARIES = words("torch numpy pandas jax tensorflow re io _io logging threading _thread socket")


def _is(value: Any, kinds: Any) -> bool:
    """Replaces isinstance(), which calls the object's __class__ and may raise."""
    return issubclass(type(value), kinds)


def _is_library(kind_of: type) -> bool:
    return any(str(each.__module__).partition(".")[0] in _LIBRARIES for each in kind_of.__mro__)


_PLAIN_WORDS = re.compile(r"[a-z]{1,12}[0-9]{0,3}|[a-z]{1,20}[0-9]{0,3}(?:[_./-](?:[a-z]{1,20}[0-9]{0,3}|[0-9]{1,3}))+")
"""Words that configs use for layers, columns and files: encoder.layer1, train_images."""

_SHORT = frozenset(("dtype", "device", "Size", "layout", "memory_format"))
"""Types of torch and numpy whose values are short words."""


def _str(value: Any) -> str:
    """Converts any value to text.

    Tensors, arrays and modules contain data, so only the name of their class is used.
    """
    if type(value) is str:
        return value
    try:
        kind_of = type(value)
        if not _is(value, _AS_TEXT) and _is_library(kind_of) and not _is(value, numbers.Number):
            name = kind_of.__name__
            if not any(name.endswith(each) or name.lower().endswith("dtype") for each in _SHORT):
                return f"<{name}>"
        return str.__str__(value) if _is(value, str) and not _is(value, Enum) else str(value)
    except Exception:  # noqa: BLE001 - an object of a stranger, whose __str__ may raise anything
        return f"<{type(value).__name__}>"


def _named_pair(fields: Mapping[Any, Any]) -> str:
    """Returns the name in {"name": "PASSWORD", "value": ...}, else ''.

    Environments and headers are written in this form.
    """
    if not any(_str(name).lower() in ("value", "content", "default") for name in fields):
        return ""
    names = [
        each for name, each in fields.items() if _str(name).lower() in ("name", "key", "header", "env", "variable")
    ]
    return next((each for each in names if isinstance(each, str)), "")


def _asked_by(before: str, value: Any, *, pair: bool) -> str:
    """Returns the name of a list's member, or ''.

    The name is the option before the member, or the first of a pair.
    """
    if before.startswith("-") and "=" not in before and not (_is(value, str) and value.startswith("--")):
        if before in ("-u", "--user", "--proxy-user"):
            return "password" if _is(value, str) and ":" in value else ""
        return before
    return before if pair and kind(before) is Kind.SECRET else ""


def _hides(said: str) -> bool:
    """Returns whether a text can be a secret; None, true and the like cannot."""
    return said.strip() not in ("", "None", "none", "null", "True", "False", "true", "false", GONE, BEYOND)


def _new(name: str, made: Container[str]) -> str:
    """Returns a name that is not used yet: two secret names get the same replacement."""
    if name not in made:
        return name
    number = 2
    while f"{name} {number}" in made:
        number += 1
    return f"{name} {number}"


def _names_secret(name: str, value: str) -> bool:
    found = kind(name)
    return found is Kind.SECRET or (found is Kind.TEXT and not is_number(value))


def _is_telling(value: str) -> bool:
    """Returns whether a secret is distinctive, so that removing it does not damage common words."""
    if not MIN_KNOWN_CHARS <= len(value) <= MAX_WORDS or value.startswith(("/", "./", "~")) or is_number(value):
        return False
    kinds = (str.islower, str.isupper, str.isdigit, lambda sign: not sign.isalnum())
    several = sum(any(map(each, value)) for each in kinds)
    return several >= 2 if len(value) < 16 else several >= 2 or value.isalpha()


def _parts_of(value: str) -> Iterator[str]:
    """Yields parts of a secret that may appear alone.

    These are the password of a URL, and each word of a value with spaces, such as the token after `Bearer`.
    """
    yield from value.split() if " " in value else ()
    before, at, _ = value.partition("://")[2].rpartition("@")
    if at:
        yield before.partition(":")[2]


here = Redactor(remembers=True)
"""The redactor of this process, for all its output."""
