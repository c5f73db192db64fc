"""Makes text from a run or a server safe to display and to store.

The text is foreign input for terminals, chats, mails, alerts and documents. Safe text does not move the cursor, start a
line, reverse the reading direction, mention anyone or link anywhere.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

MISLEADING_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of characters that move the cursor, end a line, reverse the text that follows, or are no
characters."""

JOINERS = "\u200c\u200d"
"""Characters of these categories that some scripts and emoji need."""

INVISIBLE_BREAK = "\u200c"
"""An invisible character, across which no chat recognizes a mention, a tag or a link."""

MENTION = re.compile(r"[@\uff20](?=[^\s\u200c])(?!torch\.amp\.)")
"""@everyone, @here, @channel, @someone. A decorator such as @torch.amp... in a fix is excluded, so that it can be
copied."""

TAG = re.compile(r"<(?=\s*[A-Za-z/!@#:&?])")
"""<!channel>, <@U123>, <https://...|text>, <b>."""

LINK = re.compile(r"\]\s*(?=[(\[])")
"""[text](address), [text][reference]."""

ADDRESS = re.compile(r"(?<=[A-Za-z]):(?=//)")

BACKTICK = "`"


def line(text: str) -> str:
    """Returns the text as one harmless line; each misleading character becomes U+FFFD."""
    if text.isprintable():  # the usual case: nothing to replace
        return text
    return "".join("\ufffd" if _misleads(character) else character for character in text)


def name(value: str) -> str:
    """Returns a name from a run as one line without mentions, tags, links or code.

    It has no effect in any chat, mail or document.
    """
    return ADDRESS.sub(f":{INVISIBLE_BREAK}", _inert(value)).replace(BACKTICK, "'")


def sentence(value: str) -> str:
    """Returns a sentence of Ammeter in which names from a run have no effect.

    The sentence's own code remains code.
    """
    text = _inert(value)
    code_is_closed = text.count(BACKTICK) % 2 == 0 and BACKTICK * 2 not in text
    return text if code_is_closed else text.replace(BACKTICK, "'")


def escaped(text: str) -> str:
    """Returns the text as one line, with unprintable characters in Python's notation."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def shortened(text: str, max_chars: int) -> str:
    """Truncates the text to a number of characters, the last of which is then an ellipsis."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def storable(text: str) -> str:
    """Replaces NUL and lone surrogates, which PostgreSQL and UTF-8 do not accept."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def json(value: Any) -> str:
    """Formats a value as JSON for people; unprintable characters are escaped, with the same meaning."""
    import msgspec  # the doctor prints its lines even without msgspec

    text = msgspec.json.format(msgspec.json.encode(value)).decode()
    return "\n".join("".join(map(_json_escape, row)) for row in text.split("\n"))


def _inert(value: str) -> str:
    text = line(" ".join(value.split()))
    text = MENTION.sub(lambda mention: mention[0] + INVISIBLE_BREAK, text)
    return LINK.sub(f"]{INVISIBLE_BREAK}", TAG.sub(f"<{INVISIBLE_BREAK}", text))


def _misleads(character: str) -> bool:
    return unicodedata.category(character) in MISLEADING_CATEGORIES and character not in JOINERS


def _json_escape(character: str) -> str:
    if character.isprintable():
        return character
    words = character.encode("utf-16-be")
    return "".join(f"\\u{words[at : at + 2].hex()}" for at in range(0, len(words), 2))
