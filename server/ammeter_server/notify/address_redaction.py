"""Removes the secrets of an address from texts: they show scheme, host and port only."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit, urlunsplit

import urllib3

from ammeter.redaction import GONE, Redactor

MIN_PIECE_CHARS = 4
"""Shorter pieces of an address are not removed from texts."""

_redactor = Redactor(remembers=False)


@dataclass(frozen=True)
class Address:
    """A web address without its userinfo, which goes into the headers as basic authentication."""

    url: str
    headers: dict[str, str]
    conceal: Callable[[str], str]


def address(url: str) -> Address:
    """Splits a URL that may contain a user and a password into address and headers."""
    parts = urlsplit(url)
    userinfo, at, host = parts.netloc.rpartition("@")
    plain = urlunsplit(parts._replace(netloc=host)).rstrip("/")
    headers = urllib3.make_headers(basic_auth=unquote(userinfo)) if at else {}
    return Address(plain, dict(headers), concealing(url))


def concealing(url: str) -> Callable[[str], str]:
    """Returns a function that removes secrets and all parts of this URL except scheme, host and port."""
    rest = url.partition("://")[2]
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    userinfo, _, host = authority.rpartition("@")
    pieces = set(re.split(r"[/?&=@:#;,+]", f"{userinfo}/{rest[len(authority) :]}")) | {userinfo, rest}
    if "." not in host and not host.startswith(("localhost", "[")):
        pieces.add(host.partition(":")[0])  # the URL of a service without a host begins with a token
    forms = {form for piece in pieces for form in (piece, unquote(piece))}
    longest = sorted((form for form in forms if len(form) >= MIN_PIECE_CHARS), key=len, reverse=True)

    def conceal(text: str) -> str:
        for piece in longest:
            text = text.replace(piece, GONE)
        return _redactor.text(text)

    return conceal
