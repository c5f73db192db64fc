"""The fenced blocks of the documents, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.house import tree

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
SEPARATORS = {"&&", "||", "|", ";", "&", "(", ")", "do", "until", "then", "if"}


@dataclass(frozen=True)
class Block:
    """A fenced block. line: of its fence in the page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(tree.ROOT)}:{self.line}"


def blocks(page: Path, *languages: str) -> list[Block]:
    """Returns the blocks of a page, in these languages or in all."""
    text = page.read_text(encoding="utf-8")
    found = [
        Block(page, text.count("\n", 0, match.start()) + 1, match[2], _dedented(match[3], len(match[1])))
        for match in FENCE.finditer(text)
    ]
    return [block for block in found if not languages or block.language in languages]


def pages() -> list[Path]:
    """Returns every document that people read: docs/, README.md, CONTRIBUTING.md and the runbooks."""
    folders = (tree.ROOT / "docs", tree.ROOT / "alerts" / "runbooks")
    single = [tree.ROOT / name for name in ("README.md", "CONTRIBUTING.md", "bench/README.md")]
    return [*single, *(page for folder in folders for page in sorted(folder.rglob("*.md")))]


def all_blocks(*languages: str) -> list[Block]:
    return [block for page in pages() for block in blocks(page, *languages)]


def commands(shell: str) -> Iterator[list[str]]:
    """Yields the words of each command, without variables that are set for it. $(...) is a command too."""
    shell = shell.replace("\\\n", " ")
    for inner in re.findall(r"\$\(([^()]*)\)", shell):
        yield from commands(inner)
    for line in re.sub(r"\$\([^()]*\)", "VALUE", shell).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.wordchars += "~-./*?=:@,{}$^#<>[]%+"
        command: list[str] = []
        for word in [*_words(lexer), ";"]:
            if word in SEPARATORS:
                if command:
                    yield command
                command = []
            elif command or not re.match(r"[A-Z_]+=", word):
                command.append(word)


def _words(lexer: shlex.shlex) -> Iterator[str]:
    for word in lexer:
        if word.startswith("#"):
            return
        yield word


def _dedented(text: str, spaces: int) -> str:
    return re.sub(rf"^ {{0,{spaces}}}", "", text, flags=re.MULTILINE) if spaces else text
