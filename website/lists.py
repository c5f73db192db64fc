"""Lists as Python-Markdown reads them: four columns per level, where GitHub asks for as many as the mark has."""

from __future__ import annotations

import re
from collections.abc import Iterator

MARK = re.compile(r"(?:[-*]|\d+\.) +")
COLUMNS = 4


def indented(text: str) -> str:
    """Returns a document with the lines of lists moved, and a blank line before each list."""
    return "".join(f"{line}\n" for line in _lines(text.splitlines()))


def _lines(lines: list[str]) -> Iterator[str]:
    offsets: list[int] = []
    before, is_code, was_code = "", False, False
    for line in lines:
        content = line.lstrip(" ")
        spaces = len(line) - len(content)
        is_fence = content.startswith("```")
        if content and not is_code:
            while offsets and spaces < offsets[-1]:
                offsets.pop()
            mark = MARK.match(content)
            if before and (is_fence or was_code or (mark and not offsets and not _in_list(before))):
                yield ""
        else:
            mark = None
        shift = COLUMNS * len(offsets) + max(spaces - (offsets[-1] if offsets else 0), 0)
        yield " " * shift + content if content else ""
        if mark:
            offsets.append(spaces + len(mark[0]))
        was_code = is_fence and is_code
        is_code ^= is_fence
        before = line


def _in_list(line: str) -> bool:
    return line.startswith(" ") or bool(MARK.match(line))
