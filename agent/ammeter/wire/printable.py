"""What a run or a server said, as people read it: on a terminal, in a chat, a mail, an alert or a document. It is
somebody else's text, and moves no cursor, begins no line, reads forwards, calls nobody and leads nowhere."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

MISLEADING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's categories of what moves a cursor, ends a line, turns round the text after it, or is no character."""

JOINERS = "\u200c\u200d"
"""Of those, what some scripts and emoji are written with."""

BREAK = "\u200c"
"""What nobody sees, and what no chat finds a mention, a tag or a link across."""

MENTION = re.compile(r"[@\uff20](?=[^\s\u200c])(?!torch\.amp\.)")
"""@everyone, @here, @channel, @someone; what a fix tells to write above a function is copied as it stands."""

TAG = re.compile(r"<(?=\s*[A-Za-z/!@#:&?])")
"""<!channel>, <@U123>, <https://...|text>, <b>."""

LINK = re.compile(r"\]\s*(?=[(\[])")
"""[text](address), [text][reference]."""

ADDRESS = re.compile(r"(?<=[A-Za-z]):(?=//)")

FENCE = "`"


def line(text: str) -> str:
    """The text as one line that moves no cursor and reads forwards: what misleads becomes U+FFFD."""
    if text.isprintable():  # as nearly all is, and then there is nothing of it
        return text
    return "".join("\ufffd" if _misleads(sign) else sign for sign in text)


def name(value: str) -> str:
    """A name that a run gave, as one line that does nothing in any chat, mail or document: no mention, tag or link, and
    no part of it is code."""
    return ADDRESS.sub(f":{BREAK}", _inert(value)).replace(FENCE, "'")


def sentence(value: str) -> str:
    """A sentence of ours that may hold such names, which do nothing in it. Its own code stays code."""
    said = _inert(value)
    whole = said.count(FENCE) % 2 == 0 and FENCE * 2 not in said
    return said if whole else said.replace(FENCE, "'")


def json(value: Any) -> str:
    """The value as JSON to be read by people too: what cannot be printed is escaped, and means the same."""
    import msgspec  # the doctor's lines are shown where it is missing

    text = msgspec.json.format(msgspec.json.encode(value)).decode()
    return "\n".join("".join(map(_escaped, each)) for each in text.split("\n"))


def _inert(value: str) -> str:
    said = line(" ".join(value.split()))
    said = MENTION.sub(lambda found: found[0] + BREAK, said)
    return LINK.sub(f"]{BREAK}", TAG.sub(f"<{BREAK}", said))


def _misleads(sign: str) -> bool:
    return unicodedata.category(sign) in MISLEADING and sign not in JOINERS


def _escaped(sign: str) -> str:
    if sign.isprintable():
        return sign
    words = sign.encode("utf-16-be")
    return "".join(f"\\u{words[at : at + 2].hex()}" for at in range(0, len(words), 2))
