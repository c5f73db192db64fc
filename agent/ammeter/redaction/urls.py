"""Removes userinfo, webhook paths, and secrets in query and fragment from URLs."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from urllib.parse import unquote

from ammeter.redaction.key_words import Kind, words
from ammeter.redaction.keys import kind
from ammeter.redaction.lazy_pattern import pattern
from ammeter.redaction.placeholders import GAP, is_number

_URL = pattern(r"(?:[A-Za-z][A-Za-z0-9+.-]*+:)?//(?:[^\s/@\"'<>`\\]{1,300}@[^\s\"'<>`|\\^{}]*|[^\s\"'<>`|\\^{}]+)")
_AUTHORITY = pattern(r"(?P<scheme>[^/]*//)(?P<rest>.*)", re.DOTALL)
_PATH_SECRETS = pattern(
    r"(?P<prefix>/(?:services|workflows|triggers|api/webhooks|webhooks?|webhookb2|incomingwebhook|incoming|hooks?(?:/catch|/incoming)?"
    r"|with/key|soap/v3[^/]{0,3}|integration/[^/]+/enqueue))/(?P<gone>[^?#]+)|(?P<bot>/(?:file/)?bot)[0-9]{5,}:[^/?#]+",
    re.IGNORECASE,
)
_HOOK_HOSTS = pattern(
    r"^(?:hooks\.|webhook|[^/]*\.webhook\.|maker\.ifttt\.com|hc-ping\.com|[^/]*\.pipedream\.net|discord(?:app)?\.com/api/webhooks"
    r"|[^/]*\.logic\.azure\.com|outlook\.office(?:365)?\.com/webhook|events\.pagerduty\.com/integration|ntfy\.sh|api\.telegram\.org)",
    re.IGNORECASE,
)
_PUBLIC_USERS = pattern(r"[A-Za-z][a-z_.-]{0,14}[0-9]{0,3}")
"""User names that may remain in a URL, because they are not secret."""
_SECRET_PARAMETERS = words(
    """
    sig signature key code auth hash hmac policy credential sign token st ticket nonce pw p pass user_token k s
    x-amz-signature x-amz-credential x-amz-security-token x-goog-signature x-goog-credential awsaccesskeyid
    googleaccessid x-oss-signature ossaccesskeyid x-cos-security-token hdnts hdnea __token__ q-signature q-ak
    """
)


_PARAMETER = pattern(r"(?:^|(?<=[&;#?]))[^&;#?]+")

MIN_RANDOM_CHARS = 20


def redact_urls(text: str, cut: Callable[[str], str]) -> str:
    """Returns the text with its URLs redacted. cut: removes secrets of other forms from a parameter's value."""
    return _URL.sub(partial(_redact_url, cut), text)


def looks_random(text: str) -> bool:
    """Returns whether a text contains a long unbroken mix of letters and digits.

    In a query, such text usually grants access.
    """
    return any(
        len(piece) >= MIN_RANDOM_CHARS and re.search(r"[0-9]", piece) and re.search(r"[A-Za-z]", piece)
        for piece in re.split(r"[^A-Za-z0-9+_]", text)
    )


def _redact_url(cut: Callable[[str], str], match: re.Match[str]) -> str:
    parts = _AUTHORITY.fullmatch(match[0])
    assert parts is not None
    scheme, rest = parts["scheme"], parts["rest"]
    rest = _without_userinfo(scheme, rest)
    place, mark, query = rest.partition("?")
    place, hash_, fragment = place.partition("#")
    if not mark:
        query = ""
    if _HOOK_HOSTS.search(place.rpartition("@")[2]):
        host, slash, path = place.partition("/")
        place = f"{host}/{GAP}" if slash and path else place
    else:
        place = _PATH_SECRETS.sub(_redact_path, place)
    query = _PARAMETER.sub(partial(_redact_parameter, cut), query)
    fragment = _PARAMETER.sub(partial(_redact_parameter, cut), fragment)
    return f"{scheme}{place}{hash_}{fragment}{mark}{query}"


def _without_userinfo(scheme: str, rest: str) -> str:
    """Removes userinfo, which ends at the last @ before the path.

    A password that contains a slash also ends at an @; a port does not.
    """
    authority = re.match(r"[^/?#]*", rest)
    head = authority[0] if authority else ""
    user, at, _ = head.rpartition("@")
    if not at:
        password = re.match(r"([^/?#@:\[\]]*):(?![0-9]{1,5}(?:[/?#]|$))\S*@", rest)
        if password is None:
            return rest
        return f"{GAP}@{rest[password.end() :]}"
    name, colon, _ = user.partition(":")
    web = scheme.lower().endswith(("http://", "https://", "ftp://", "ws://", "wss://")) or scheme == "//"
    harmless = not colon and not web and _PUBLIC_USERS.fullmatch(name)
    more = re.match(r"[^\s]*:[^\s/]*@", rest[len(user) + 1 :])  # a second @: the first was part of the password
    if more is not None:
        return f"{GAP}@{rest[len(user) + 1 + more.end() :]}"
    return rest if harmless else f"{GAP}@{rest[len(user) + 1 :]}"


def _redact_path(match: re.Match[str]) -> str:
    return f"{match['bot']}{GAP}" if match["bot"] else f"{match['prefix']}/{GAP}"


def _redact_parameter(cut: Callable[[str], str], match: re.Match[str]) -> str:
    name, equals, value = match[0].partition("=")
    if not equals or not value:
        return GAP if looks_random(name) else match[0]
    plain = unquote(value)
    named = kind(unquote(name))
    number = is_number(plain) and named is not Kind.SECRET
    if not number and (
        named is not Kind.PLAIN or name.lower() in _SECRET_PARAMETERS or looks_random(plain) or cut(plain) != plain
    ):
        return f"{name}={GAP}"
    return match[0]
