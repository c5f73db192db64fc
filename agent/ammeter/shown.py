"""What a run or a server said, on somebody's terminal, which obeys control characters: as signs that only show."""

from __future__ import annotations

from typing import Any


def line(text: str) -> str:
    """The text as one line that moves no cursor and reads forwards: what cannot be printed becomes U+FFFD."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "�" for sign in text)


def json(value: Any) -> str:
    """The value as JSON to be read by people too: what cannot be printed is escaped, and means the same."""
    import msgspec  # the doctor's lines are shown where it is missing

    text = msgspec.json.format(msgspec.json.encode(value)).decode()
    return "\n".join("".join(map(_escaped, each)) for each in text.split("\n"))


def _escaped(sign: str) -> str:
    if sign.isprintable():
        return sign
    words = sign.encode("utf-16-be")
    return "".join(f"\\u{words[at : at + 2].hex()}" for at in range(0, len(words), 2))
