"""Decides which keys name a secret.

`api-key`, `WANDB_KEY` and `db.password` do; `max_tokens` and `sort_key` only resemble such keys.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from ammeter.redaction import key_words
from ammeter.redaction.key_words import Kind
from ammeter.redaction.lazy_pattern import pattern

MAX_KEY_CHARS = 200
"""Characters of a key that are examined, from its end: in a path of keys the last one has the meaning."""


def kind(key: str, parent: str = "") -> Kind:
    """Returns the kind of a key.

    parent: the key above it, as in {"wandb": {"key": ...}}.
    """
    alone = _kind(key[-MAX_KEY_CHARS:])
    if not parent or alone is Kind.SECRET:
        return alone
    together = _kind(f"{parent[-MAX_KEY_CHARS:]} {key[-MAX_KEY_CHARS:]}")
    return together if together is Kind.SECRET or alone is Kind.PLAIN else alone


def is_quantity(key: str) -> bool:
    """Returns whether the key names a quantity, such as password_min_length."""
    return not key_words.QUANTITIES.isdisjoint(_words_of(key[-MAX_KEY_CHARS:]))


@lru_cache(4096)
def _kind(key: str) -> Kind:
    parts = _words_of(key)
    kinds = {_of_word(parts, at, word) for at, word in enumerate(parts)}
    kinds |= {_of_pair(parts, at) for at in range(len(parts))}
    kinds.add(_of_address(parts))
    return next((kind for kind in (Kind.SECRET, Kind.TEXT, Kind.COUNT) if kind in kinds), Kind.PLAIN)


_BOUNDARY = pattern(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_LETTERS = pattern(r"[^\W\d_]+")


def _words_of(key: str) -> tuple[str, ...]:
    """Splits a key into lower-case words, at signs, digits and camelCase.

    Known compounds of two words are split too.
    """
    separated = _BOUNDARY.sub(" ", unicodedata.normalize("NFKC", key))
    return tuple(part for word in _LETTERS.findall(separated) for part in _parts(word.lower()))


_OWNED_SUFFIXES = (
    ("keys", key_words.KEY_OWNERS),
    ("key", key_words.KEY_OWNERS),
    ("pass", key_words.USERS),
    ("pw", key_words.USERS),
)


def _parts(word: str) -> tuple[str, ...]:
    """Splits compounds: 'apikey' -> 'api', 'key'; 'hftoken' -> 'hf', 'token'.

    'monkey' and 'tokenizer' remain single words.
    """
    for last, owners in _OWNED_SUFFIXES:
        before = word.removesuffix(last)
        if before != word and (before in owners or before.endswith(key_words.OWNER_ENDINGS)):
            return before, last
    for last in ("tokens", "token", "secrets", "secret"):
        before = word.removesuffix(last)
        if before and before != word:
            return before, last
    if word.startswith("secret") and word[6:] in ("key", "keys", "access", "accesskey", "token", "value", "id"):
        return "secret", word[6:]
    return (word,)


def _of_word(parts: tuple[str, ...], at: int, word: str) -> Kind:
    if word in key_words.SECRETS or any(part in word for part in key_words.WITHIN):
        return Kind.SECRET
    if word in key_words.TEXTS or word.startswith("credential"):
        return Kind.TEXT
    if word in key_words.LAST:
        return key_words.LAST[word] if at == len(parts) - 1 else Kind.PLAIN
    before = parts[at - 1] if at else ""
    if word in ("pass", "pw", "pin", "phrase", "hash"):
        return _pass(word, before, parts[at + 1 :])
    if word in ("key", "keys"):
        return _key(word, before, parts[at + 1 :])
    if word in ("token", "tokens"):
        return _token(word, before, parts[at + 1 :])
    return Kind.PLAIN


def _pass(word: str, before: str, after: tuple[str, ...]) -> Kind:
    if after:
        return Kind.PLAIN
    if word in ("phrase", "hash"):
        return Kind.SECRET if before in ("pass", "seed", "recovery", "secret", "auth") else Kind.PLAIN
    certain = not before or before in key_words.USERS or before.endswith(key_words.OWNER_ENDINGS) or word == "pw"
    return Kind.SECRET if certain else Kind.PLAIN


def _key(word: str, before: str, after: tuple[str, ...]) -> Kind:
    if before in key_words.PLAIN_KEYS or not key_words.STILL_KEY.issuperset(after):
        return Kind.SECRET if before in key_words.KEY_CERTAIN and after[:1] != ("name",) else Kind.PLAIN
    if before in key_words.KEY_OWNERS:
        return Kind.SECRET
    return Kind.TEXT if word == "key" else Kind.PLAIN


def _token(word: str, before: str, after: tuple[str, ...]) -> Kind:
    if before in key_words.PLAIN_TOKENS:
        return Kind.PLAIN
    if word == "tokens":
        if before in key_words.TOKEN_OWNERS:
            return Kind.TEXT if not after or key_words.STILL_TOKEN.issuperset(after) else Kind.COUNT
        return Kind.COUNT if not after or key_words.STILL_TOKEN.issuperset(after) else Kind.PLAIN
    if before in key_words.TOKEN_OWNERS or key_words.STILL_TOKEN.issuperset(after):
        return Kind.SECRET
    return Kind.TEXT if not key_words.STILL_TOKEN.isdisjoint(after) else Kind.PLAIN


def _of_pair(parts: tuple[str, ...], at: int) -> Kind:
    pair = parts[at : at + 2]
    return key_words.PAIRS.get(pair, Kind.PLAIN) if len(pair) == 2 else Kind.PLAIN


def _of_address(parts: tuple[str, ...]) -> Kind:
    """Detects addresses that usually contain a password, or are secret themselves."""
    if parts and parts[-1] in key_words.ADDRESSES and not key_words.SERVICES.isdisjoint(parts):
        return Kind.TEXT
    return Kind.PLAIN
