"""Removes secrets from the values of a config: nested data, fields of objects, command lines and JSON."""

from __future__ import annotations

import json
import numbers
from collections.abc import Container, Mapping, Sequence
from typing import Any, Protocol

from ammeter.redaction.key_words import Kind
from ammeter.redaction.keys import is_quantity, kind
from ammeter.redaction.objects import fields_of, is_a, text_of
from ammeter.redaction.placeholders import BEYOND, GONE, is_number

MAX_TEXT_CHARS = 10_000
"""Length limit of a name, a tag or a config value."""

MAX_DEPTH = 16
MAX_VALUES = 20_000
"""Limits of depth and number of values in a config; values beyond them are not sent."""

_USER_OPTIONS = ("-u", "--user", "--proxy-user")


class TextRedactor(Protocol):
    """The part of a Redactor that a config needs."""

    def words(self, value: Any) -> str: ...

    def withhold(self, value: Any, meaning: Kind = Kind.SECRET) -> str: ...


class ConfigRedactor:
    """One traversal of a config, with its remaining values and the objects being visited."""

    def __init__(self, redactor: TextRedactor) -> None:
        self._redactor = redactor
        self._values_left = MAX_VALUES
        self._visiting: set[int] = set()

    def value(self, value: Any, key: str, parent: str, inherited: Kind) -> Any:
        """Returns a value without secrets. inherited: the kind of the keys above it."""
        self._values_left -= 1
        meaning = kind(key, parent) if key else Kind.PLAIN
        meaning = inherited if meaning is Kind.PLAIN else meaning
        if value is None or is_a(value, bool):
            return value
        if is_a(value, str):
            return self._text(value, key, meaning)
        if is_a(value, numbers.Number):
            return self._number(value, key, meaning)
        if self._values_left < 0 or len(self._visiting) >= MAX_DEPTH or id(value) in self._visiting:
            return BEYOND
        self._visiting.add(id(value))
        try:
            return self._compound(value, key, meaning)
        except Exception:  # noqa: BLE001 - an object of a stranger, whose methods may raise anything
            return f"<{type(value).__name__}>"
        finally:
            self._visiting.discard(id(value))

    def members(self, values: Sequence[Any], key: str, parent: str, meaning: Kind) -> list[Any]:
        """Returns the members of a list; their keys may be in the list itself.

        In an argv an option is the key of the next member, in a pair the name is the key of the value.
        """
        redacted: list[Any] = []
        for at, value in enumerate(values):
            if self._values_left < 0:
                redacted.append(BEYOND)
                break
            before = values[at - 1] if at else None
            option = _key_before(before, value, pair=len(values) == 2) if isinstance(before, str) else ""
            redacted.append(self.value(value, option or key, "" if option else parent, meaning))
        return redacted

    def _compound(self, value: Any, key: str, meaning: Kind) -> Any:
        fields = value if is_a(value, Mapping) else fields_of(value)
        if fields is not None:
            return self._mapping(fields, key, meaning)
        if is_a(value, (list, tuple, set, frozenset)):
            members = self.members(list(value), key, "", meaning)  # records each member of a secret
            return GONE if meaning is Kind.SECRET else members
        return self._text(text_of(value), key, meaning)

    def _mapping(self, fields: Mapping[Any, Any], key: str, meaning: Kind) -> dict[str, Any]:
        redacted: dict[str, Any] = {}
        pair_key = _key_of_pair(fields)
        for name, value in fields.items():
            if self._values_left < 0:
                redacted[unused(BEYOND, redacted)] = ""
                break
            own = text_of(name)
            if pair_key and own.lower() in ("value", "content", "default"):
                redacted[unused(own, redacted)] = self.value(value, pair_key, key, meaning)
            else:
                redacted[unused(self._redactor.words(own), redacted)] = self.value(value, own, key, meaning)
        return redacted

    def _text(self, text: str, key: str, meaning: Kind) -> str:
        counts = is_number(text) and (meaning is Kind.COUNT or is_quantity(key))
        if meaning is not Kind.PLAIN and may_be_secret(text) and not counts:
            return self._redactor.withhold(text, meaning)
        is_json = text[:1] in ("{", "[") and len(text) <= MAX_TEXT_CHARS
        return self._redactor.words(self._json(text) if is_json else text)

    def _json(self, text: str) -> str:
        """Removes secrets from JSON in a text. The text is unchanged if it contains none."""
        try:
            content = json.loads(text)
            redacted = self.value(content, "", "", Kind.PLAIN)
            return text if redacted == content else json.dumps(redacted)
        except (ValueError, RecursionError):
            return text

    def _number(self, value: Any, key: str, meaning: Kind) -> Any:
        if meaning is Kind.SECRET and not is_quantity(key):
            return self._redactor.withhold(text_of(value))
        if is_a(value, numbers.Integral) and int(value).bit_length() < 64:
            return int(value)
        if is_a(value, numbers.Real) and not is_a(value, numbers.Rational):
            return float(value)
        return self._redactor.words(value)


def may_be_secret(text: str) -> bool:
    """Returns whether a text can be a secret; None, true and the like cannot."""
    return text.strip() not in ("", "None", "none", "null", "True", "False", "true", "false", GONE, BEYOND)


def unused(name: str, names: Container[str]) -> str:
    """Returns a name that is not used yet: two secret names get the same replacement."""
    if name not in names:
        return name
    number = 2
    while f"{name} {number}" in names:
        number += 1
    return f"{name} {number}"


def _key_of_pair(fields: Mapping[Any, Any]) -> str:
    """Returns the name in {"name": "PASSWORD", "value": ...}, else ''.

    Environments and headers are written in this form.
    """
    if not any(text_of(name).lower() in ("value", "content", "default") for name in fields):
        return ""
    labels = ("name", "key", "header", "env", "variable")
    names = [value for name, value in fields.items() if text_of(name).lower() in labels]
    return next((name for name in names if isinstance(name, str)), "")


def _key_before(before: str, value: Any, *, pair: bool) -> str:
    """Returns the name of a list's member, or ''.

    The name is the option before the member, or the first of a pair.
    """
    if before.startswith("-") and "=" not in before and not (is_a(value, str) and value.startswith("--")):
        if before in _USER_OPTIONS:
            return "password" if is_a(value, str) and ":" in value else ""
        return before
    return before if pair and kind(before) is Kind.SECRET else ""
