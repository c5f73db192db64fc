"""What a program says, without its secrets: config, tags, names, errors, events, the command line.

The only place where it is decided what is withheld. A value goes because of its key (keys.py), because of its form
(patterns.py), or because it went before: what a Redactor has withheld once it cuts from whatever is said later.
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
"""Characters of a name, a tag or a config value."""

MAX_DEPTH = 16
MAX_VALUES = 20_000
"""How deep and how far a config is followed; what lies beyond is not sent."""

BEYOND = "(not sent: too deep or too long)"

MIN_KNOWN_CHARS, _MAX_KNOWN = 8, 1_000
"""Characters from which a value that was withheld is looked for in everything else; and how many values are."""

_REMEMBERED, _REMEMBERED_CHARACTERS = 4_096, 300
"""Texts of which it is remembered what becomes of them: names of tensors, lines, reasons."""

_MARGIN = 2_000
"""Characters at the end of a text that was too long to be looked through which go with what was cut off."""


Said = TypeVar("Said", bound=Frame | Block)

_SAID = ("config", "tags", "environment", "name", "project", "host")
"""What of a hello a program or its launcher has said."""


class Redactor:
    """Withholds secrets. Nothing of it raises for what a program says."""

    def __init__(self, *, remembers: bool) -> None:
        """remembers: whether what was withheld once is cut from everything else, too: of one process, not of many."""
        self._remembers = remembers
        self._known: set[str] = set()
        self._longest_first: list[str] = []
        self._seen: dict[str, str] = {}
        self._hello: tuple[Hello, Hello] | None = None
        self._tensors: tuple[Any, Any] = (), ()

    def learn(self, variables: Mapping[str, str]) -> None:
        """Of the variables of an environment, the values of those that name a secret are cut wherever they turn up."""
        for name, value in variables.items():
            if _names_secret(name, value):
                self._withhold(value, kind(name))

    def text(self, said: str) -> str:
        """The text without the secrets in it."""
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
        """Anything as text without secrets, as it can be written anywhere: cut, and without what UTF-8 cannot say."""
        said, longest = _str(value), 2 * most + _MARGIN
        said = self.text(said[:longest])[:-_MARGIN] if len(said) > longest else self.text(said)
        return said[:most].encode("utf-8", "replace").decode()

    def plain(self, value: Any, key: str = "") -> Any:
        """A value of a config as it may be sent: plain data as it is, objects by their fields, others as text."""
        return _Descent(self).value(value, key, "", Kind.PLAIN)

    def tags(self, tags: Mapping[Any, Any]) -> dict[str, str]:
        """Words to find a run by."""
        found: dict[str, str] = {}
        for key, value in tags.items():
            is_direction = _is(key, str) and key.startswith(BETTER) and _is(value, str) and value in DIRECTIONS
            said = {self.words(key): value} if is_direction else self.plain({key: value})
            for name, each in said.items():
                found[_new(name, found)] = each if isinstance(each, str) else self.words(each)
        return found

    def fact(self, name: str, value: str) -> str:
        """A fact of where and how a run trains. Its name may be one that the program has given."""
        return self.words(self.plain(value, name))

    def command(self, argv: Sequence[str]) -> str:
        """A command line as a shell would read it."""
        return self.words(shlex.join(_str(each) for each in self._list([_str(each) for each in argv])))

    def frame(self, frame: Said) -> Said:
        """A frame of a stream without secrets in what the program has said in it."""
        if type(frame) is Steps or type(frame) is Lost:
            return frame
        try:
            clean: Said = self._frame(frame)
        except (RecursionError, MemoryError):  # what could not be looked through is not written
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
        """A hello without secrets: twice is as once. columns: whether their names are looked at, too, which gives the
        schema another id."""
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
        """Names of columns and tensors. Tensors are many, stay the same, and are looked through together first."""
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
        """The data of an event, the same object where nothing in it is a secret."""
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
        """Remembers a secret by which it can be known again. found: what its key says; behind one that need not be that
        of a secret, names of layers and columns stand as well."""
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
    """One way through a config: how much was seen, and what it is inside of."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._left = MAX_VALUES
        self._inside: set[int] = set()

    def value(self, value: Any, key: str, parent: str, inherited: Kind) -> Any:
        """A value below a key below another. inherited: what the keys above say of all that is below them."""
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
                self.several(list(value), key, "", found)  # so that each of them is known
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
        """The members of a list: of an argv what stands behind an option, of a pair what stands behind its name."""
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
        """JSON in a text is looked through like what it says; where nothing in it is a secret it stays as it is."""
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
    """Somebody's words as they can be written anywhere: without secrets, cut, and without what UTF-8 cannot say."""
    return here.words(said, most)


def fields_of(value: Any) -> Mapping[str, Any] | None:
    """The fields of an object by name, read without calling anything of its class; None for what has none to show.

    Of what torch and the like define, and of modules, classes and functions, a name says enough.
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
                except AttributeError:  # a slot that was never filled
                    continue
    found |= _own_dict(value)
    return found or None


def _own_dict(value: Any) -> dict[str, Any]:
    """The instance's own __dict__, whatever its class makes of that name."""
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
    """isinstance(), which asks a stranger's object for its class, and may get an error for an answer."""
    return issubclass(type(value), kinds)


def _is_library(kind_of: type) -> bool:
    return any(str(each.__module__).partition(".")[0] in _LIBRARIES for each in kind_of.__mro__)


_PLAIN_WORDS = re.compile(r"[a-z]{1,12}[0-9]{0,3}|[a-z]{1,20}[0-9]{0,3}(?:[_./-](?:[a-z]{1,20}[0-9]{0,3}|[0-9]{1,3}))+")
"""What config says of layers, columns and files: encoder.layer1, train_images."""

_SHORT = frozenset(("dtype", "device", "Size", "layout", "memory_format"))
"""Of torch and numpy, what is said in a word."""


def _str(value: Any) -> str:
    """Anything as text; of tensors, arrays and modules, which hold data, the name of their class."""
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
    """The name in {"name": "PASSWORD", "value": ...}, as environments and headers are written; else ''."""
    if not any(_str(name).lower() in ("value", "content", "default") for name in fields):
        return ""
    names = [
        each for name, each in fields.items() if _str(name).lower() in ("name", "key", "header", "env", "variable")
    ]
    return next((each for each in names if isinstance(each, str)), "")


def _asked_by(before: str, value: Any, *, pair: bool) -> str:
    """The name that a member of a list belongs to: the option before it, the first of a pair; else ''."""
    if before.startswith("-") and "=" not in before and not (_is(value, str) and value.startswith("--")):
        if before in ("-u", "--user", "--proxy-user"):
            return "password" if _is(value, str) and ":" in value else ""
        return before
    return before if pair and kind(before) is Kind.SECRET else ""


def _hides(said: str) -> bool:
    """Whether a text says anything: nobody's secret is None."""
    return said.strip() not in ("", "None", "none", "null", "True", "False", "true", "false", GONE, BEYOND)


def _new(name: str, made: Container[str]) -> str:
    """The name, told from those that are there already: two secrets become the same words."""
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
    """Whether a secret can be looked for without cutting common words out of what is said."""
    if not MIN_KNOWN_CHARS <= len(value) <= MAX_WORDS or value.startswith(("/", "./", "~")) or is_number(value):
        return False
    kinds = (str.islower, str.isupper, str.isdigit, lambda sign: not sign.isalnum())
    several = sum(any(map(each, value)) for each in kinds)
    return several >= 2 if len(value) < 16 else several >= 2 or value.isalpha()


def _parts_of(value: str) -> Iterator[str]:
    """What of a secret stands alone elsewhere: the password of a URL, each line, what follows `Bearer`."""
    yield from value.split() if " " in value else ()
    before, at, _ = value.partition("://")[2].rpartition("@")
    if at:
        yield before.partition(":")[2]


here = Redactor(remembers=True)
"""Of this process, for all it says."""
