"""Removes credentials from logins, headers and authentication schemes."""

from __future__ import annotations

import base64
import binascii
import re

from ammeter.redaction.lazy_pattern import pattern
from ammeter.redaction.placeholders import GAP, NOTHING
from ammeter.redaction.urls import looks_random

_LOGIN = pattern(
    r"(?<![\w:/@.+-])[\w.+-]{1,64}:(?:[^\s@/\"':,;]{3,}|[^\s@\"']{3,}(?=@tcp\())@(?=[\w\[(])(?!sha(?:256|512):)"
)


def redact_logins(text: str) -> str:
    """Replaces user:password@host without a scheme."""
    return _LOGIN.sub(f"{GAP}@", text)


_HEADER = pattern(
    r"(?P<head>\b(?:proxy-)?authorization|\bset-cookie2?|\bcookie|\bx-(?:[a-z]{1,20}-){0,4}(?:token|key|secret|auth|signature|password))"
    r"(?P<colon>\\*[\"']?\s{0,3}[:=]\s{0,3}(?:b?\\*[\"'])?)(?P<value>[^\r\n\"'}]+)",
    re.IGNORECASE,
)


def redact_headers(text: str) -> str:
    return _HEADER.sub(_redact_header, text)


def _redact_header(match: re.Match[str]) -> str:
    value = match["value"].strip().rstrip(",)]")
    return match[0] if value in NOTHING or value.startswith(GAP) else f"{match['head']}{match['colon']}{GAP}"


_SCHEME = pattern(
    r"\b(?P<scheme>Bearer|Basic|Negotiate|ApiKey|Splunk|SSWS|Token)(?P<space>\s+|%20)(?P<value>[A-Za-z0-9._~+/=:-]{4,})",
    re.IGNORECASE,
)
_WORDS_ABOUT_TOKENS = pattern(
    r"(?:tokens?|auth\w*|schemes?|headers?|credentials?|error|realm|format|type|required|missing|is|was|not|has|of|for|in)\b",
    re.IGNORECASE,
)


def redact_schemes(text: str) -> str:
    """Replaces the values after `Bearer` and other schemes."""
    return _SCHEME.sub(_redact_scheme, text)


def _redact_scheme(match: re.Match[str]) -> str:
    """Replaces the value after a scheme.

    After other schemes than Bearer the value is replaced only if it is clearly a secret, because the names of those
    schemes are also common words.
    """
    scheme, value = match["scheme"].lower(), match["value"]
    if scheme == "bearer":
        hidden = not _WORDS_ABOUT_TOKENS.match(value)
    elif scheme == "basic":
        hidden = _is_basic(value)
    else:
        hidden = len(value) >= 16 and looks_random(value)
    return f"{match['scheme']}{match['space']}{GAP}" if hidden else match[0]


def _is_basic(value: str) -> bool:
    try:
        return ":" in base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return False
