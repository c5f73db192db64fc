"""The redactor: removes secrets from text, configs, tags, command lines and frames."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from ammeter.redaction.config_values import MAX_TEXT_CHARS, ConfigRedactor, may_be_secret, unused
from ammeter.redaction.key_words import Kind
from ammeter.redaction.keys import kind
from ammeter.redaction.lazy_pattern import pattern
from ammeter.redaction.objects import is_a, text_of
from ammeter.redaction.patterns import cut
from ammeter.redaction.placeholders import GONE, is_number
from ammeter.wire.frames import Block, Bye, Event, Frame, Hello, Lost, Schema, Steps
from ammeter.wire.metric_directions import BETTER, DIRECTIONS

MIN_SECRET_CHARS, _MAX_SECRETS = 8, 1_000
"""A withheld value of at least MIN_SECRET_CHARS is searched for in all other text. At most _MAX_SECRETS values are
searched for."""

_MAX_CACHED, _MAX_CACHED_CHARS = 4_096, 300
"""Number and length of the texts whose result is cached: names of tensors, lines, reasons."""

_MARGIN_CHARS = 2_000
"""Characters at the end of a truncated text that are removed too, because a secret may be cut in two there."""

_PLAIN_WORDS = pattern(r"[a-z]{1,12}[0-9]{0,3}|[a-z]{1,20}[0-9]{0,3}(?:[_./-](?:[a-z]{1,20}[0-9]{0,3}|[0-9]{1,3}))+")
"""Words that configs use for layers, columns and files: encoder.layer1, train_images."""

AnyFrame = TypeVar("AnyFrame", bound=Frame | Block)

_PROGRAM_FIELDS = ("config", "tags", "environment", "name", "project", "host")
"""Fields of a hello that contain values from a program or its launcher."""


class Redactor:
    """Withholds secrets. No method raises because of a program's values."""

    def __init__(self, *, remembers: bool) -> None:
        """remembers: whether withheld values are removed from all other text too.

        Use it for the values of one process, not of many.
        """
        self._remembers = remembers
        self._secrets: set[str] = set()
        self._longest_first: list[str] = []
        self._cache: dict[str, str] = {}
        self._hello: tuple[Hello, Hello] | None = None
        self._tensors: tuple[Any, Any] = (), ()

    def learn(self, variables: Mapping[str, str]) -> None:
        """Withholds the values of secret environment variables wherever they appear later."""
        for name, value in variables.items():
            if _names_secret(name, value):
                self.withhold(value, kind(name))

    def text(self, text: str) -> str:
        """Returns the text without its secrets."""
        redacted = self._cache.get(text)
        if redacted is None:
            redacted = text
            for secret in self._longest_first:
                redacted = redacted.replace(secret, GONE)
            redacted = cut(redacted)
            if len(text) <= _MAX_CACHED_CHARS and len(self._cache) < _MAX_CACHED:
                self._cache[text] = redacted
        return redacted

    def words(self, value: Any, max_chars: int = MAX_TEXT_CHARS) -> str:
        """Converts any value to text without secrets that can be written anywhere.

        The text is truncated, and characters that UTF-8 cannot encode are replaced.
        """
        text, limit = text_of(value), 2 * max_chars + _MARGIN_CHARS
        redacted = self.text(text[:limit])[:-_MARGIN_CHARS] if len(text) > limit else self.text(text)
        return redacted[:max_chars].encode("utf-8", "replace").decode()

    def plain(self, value: Any, key: str = "") -> Any:
        """Returns a config value without secrets: plain data, fields of objects, or text."""
        return ConfigRedactor(self).value(value, key, "", Kind.PLAIN)

    def tags(self, tags: Mapping[Any, Any]) -> dict[str, str]:
        """Returns tags without secrets. Users search runs by them."""
        redacted: dict[str, str] = {}
        for key, value in tags.items():
            is_direction = is_a(key, str) and key.startswith(BETTER) and is_a(value, str) and value in DIRECTIONS
            pair = {self.words(key): value} if is_direction else self.plain({key: value})
            for name, tag in pair.items():
                redacted[unused(name, redacted)] = tag if isinstance(tag, str) else self.words(tag)
        return redacted

    def fact(self, name: str, value: str) -> str:
        """Returns a fact about the environment of a run without secrets.

        The fact's name may come from the program.
        """
        return self.words(self.plain(value, name))

    def command(self, argv: Sequence[str]) -> str:
        """Returns a command line without secrets, in shell syntax."""
        arguments = ConfigRedactor(self).members([text_of(argument) for argument in argv], "", "", Kind.PLAIN)
        return self.words(shlex.join(text_of(argument) for argument in arguments))

    def frame(self, frame: AnyFrame) -> AnyFrame:
        """Returns a frame without secrets in its values from the program."""
        if type(frame) is Steps or type(frame) is Lost:
            return frame
        try:
            redacted: AnyFrame = self._frame(frame)
        except (RecursionError, MemoryError):  # content that could not be searched is not written
            if isinstance(frame, Hello):
                return msgspec.structs.replace(frame, config={}, tags={}, environment={})
            if isinstance(frame, Bye):
                return msgspec.structs.replace(frame, message="")
            return msgspec.structs.replace(frame, data={})
        return redacted

    def hello(self, hello: Hello, *, columns: bool = True) -> Hello:
        """Returns a hello without secrets; the function is idempotent.

        columns: whether the names of columns are searched too, which changes the id of the schema.
        """
        known = self._hello
        if known is None or any(getattr(known[0], name) is not getattr(hello, name) for name in _PROGRAM_FIELDS):
            redacted = msgspec.structs.replace(
                hello,
                config=self.plain(hello.config),
                tags=self.tags(hello.tags),
                environment={self.words(name): self.fact(name, value) for name, value in hello.environment.items()},
                **{name: self.words(getattr(hello, name)) for name in ("name", "project", "host")},
            )
            known = self._hello = hello, redacted
        fields = {name: getattr(known[1], name) for name in _PROGRAM_FIELDS}
        return msgspec.structs.replace(hello, schema=self._schema(hello.schema) if columns else hello.schema, **fields)

    def withhold(self, value: Any, meaning: Kind = Kind.SECRET) -> str:
        """Records a secret for later texts, and returns its replacement.

        meaning: the kind of its key. Values of the kind TEXT that are plain words, such as names of layers and columns,
        are not recorded.
        """
        if is_a(value, str) and not (meaning is Kind.TEXT and _PLAIN_WORDS.fullmatch(value)):
            self._record(value)
        return GONE

    def _frame(self, frame: Any) -> Any:
        if isinstance(frame, Event):
            data = self._data(frame.data)
            name = self.text(frame.name)
            if data is frame.data and name == frame.name:
                return frame
            return msgspec.structs.replace(frame, name=name, data=data)
        if isinstance(frame, Bye):
            message = self.text(frame.message)
            return frame if message == frame.message else msgspec.structs.replace(frame, message=message)
        return self.hello(frame) if isinstance(frame, Hello) else frame

    def _schema(self, schema: Schema) -> Schema:
        """Removes secrets from the names of columns and tensors.

        Tensors are many and stay the same, so all their names are searched at once first.
        """
        searched, tensors = self._tensors
        if schema.tensors is not searched:
            names = "\n".join(tensor.name for tensor in schema.tensors)
            clean = self.text(names) == names
            renamed = [msgspec.structs.replace(tensor, name=self.words(tensor.name)) for tensor in schema.tensors]
            tensors = schema.tensors if clean else tuple(renamed)
            self._tensors = schema.tensors, tensors
        scalars: dict[str, None] = {}
        for name in schema.scalars:
            scalars[unused(self.text(name), scalars)] = None
        if tensors is schema.tensors and tuple(scalars) == schema.scalars:
            return schema
        return msgspec.structs.replace(schema, scalars=tuple(scalars), tensors=tensors)

    def _data(self, data: Any) -> Any:
        """Returns the data of an event without secrets; the same object if there are none."""
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, dict):
            return self._mapping(data)
        if isinstance(data, list | tuple):
            members = [value if type(value) is float or type(value) is int else self._data(value) for value in data]
            return data if members == list(data) else members
        return data

    def _mapping(self, data: dict[str, Any]) -> dict[str, Any]:
        redacted: dict[str, Any] = {}
        changed = False
        for key, value in data.items():
            name, clean = self.text(key), value
            if type(value) is not float and type(value) is not int:
                hidden = isinstance(value, str) and kind(key) is Kind.SECRET and may_be_secret(value)
                clean = GONE if hidden else self._data(value)
            if name is not key or clean is not value:
                changed = changed or name != key or clean != value
                name = unused(name, redacted)
            redacted[name] = clean
        return redacted if changed else data

    def _record(self, value: str) -> None:
        for secret in {value.strip(), *_parts_of(value)} if self._remembers else ():
            if _is_distinctive(secret) and secret not in self._secrets and len(self._secrets) < _MAX_SECRETS:
                self._secrets.add(secret)
                self._longest_first = sorted(self._secrets, key=len, reverse=True)
                self._cache = {}


def _names_secret(name: str, value: str) -> bool:
    meaning = kind(name)
    return meaning is Kind.SECRET or (meaning is Kind.TEXT and not is_number(value))


def _is_distinctive(value: str) -> bool:
    """Returns whether removing the secret does not damage common words."""
    if not MIN_SECRET_CHARS <= len(value) <= MAX_TEXT_CHARS or value.startswith(("/", "./", "~")) or is_number(value):
        return False
    classes = (str.islower, str.isupper, str.isdigit, lambda sign: not sign.isalnum())
    count = sum(any(map(contains, value)) for contains in classes)
    return count >= 2 if len(value) < 16 else count >= 2 or value.isalpha()


def _parts_of(value: str) -> Iterator[str]:
    """Yields parts of a secret that may appear alone.

    These are the password of a URL, and each word of a value with spaces, such as the token after `Bearer`.
    """
    yield from value.split() if " " in value else ()
    before, at, _ = value.partition("://")[2].rpartition("@")
    if at:
        yield before.partition(":")[2]
