"""What may be told of an address: where it leads, and nothing of what opens it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit, urlunsplit

import urllib3

from ammeter.redaction import GONE, Redactor

MIN_PIECE_CHARS = 4
"""Characters from which a piece of an address is looked for in what is said."""

_redactor = Redactor(remembers=False)


@dataclass(frozen=True)
class Address:
    """A web address without its userinfo, which goes into the headers as basic authentication."""

    url: str
    headers: dict[str, str]
    conceal: Callable[[str], str]


def address(url: str) -> Address:
    """What to ask, and with which headers, for a URL that may hold a user and a password."""
    parts = urlsplit(url)
    userinfo, at, host = parts.netloc.rpartition("@")
    plain = urlunsplit(parts._replace(netloc=host)).rstrip("/")
    headers = urllib3.make_headers(basic_auth=unquote(userinfo)) if at else {}
    return Address(plain, dict(headers), concealing(url))


def concealing(url: str) -> Callable[[str], str]:
    """Cuts from a text what it says of this URL beyond scheme, host and port, and other secrets."""
    rest = url.partition("://")[2]
    authority = re.match(r"[^/?#]*", rest)
    userinfo, _, host = (authority[0] if authority else "").rpartition("@")
    others = f"{userinfo}/{rest[len(authority[0]) if authority else 0 :]}"
    pieces = set(re.split(r"[/?&=@:#;,+]", others)) | {userinfo, rest}
    if "." not in host and not host.startswith(("localhost", "[")):
        pieces.add(host.partition(":")[0])  # of services without a host the first piece is a token
    every = {form for piece in pieces for form in (piece, unquote(piece))}
    longest = sorted((piece for piece in every if len(piece) >= MIN_PIECE_CHARS), key=len, reverse=True)

    def conceal(said: str) -> str:
        for piece in longest:
            said = said.replace(piece, GONE)
        return _redactor.text(said)

    return conceal
