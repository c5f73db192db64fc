"""Links of the documents, which lead to files of the repository, as links of the site."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
CODE = re.compile(r"(^ *```.*?^ *```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)


def resolved(text: str, source: str, places: Mapping[str, str]) -> str:
    """Returns a document with each link as it is in the site.

    A link to a file that is no page becomes the file's path. Code stays as it is.

    Args:
        source: The document's path in the repository.
        places: File in the repository -> its path in the site.
    """
    code: list[str] = []

    def hidden(match: re.Match[str]) -> str:
        code.append(match[0])
        return f"\0{len(code) - 1}\0"

    def shown(text: str) -> str:
        return re.sub("\0(\\d+)\0", lambda match: code[int(match[1])], text)

    def link(match: re.Match[str]) -> str:
        picture, label, target = match.groups()
        return _link(picture, shown(label), target, source, places)

    return shown(LINK.sub(link, CODE.sub(hidden, text)))


def _link(picture: str, label: str, target: str, source: str, places: Mapping[str, str]) -> str:
    if re.match(r"[a-z]+:|#", target):
        return f"{picture}[{label}]({target})"
    path, hash_sign, anchor = target.partition("#")
    file = _file(path, source)
    if file not in places:
        return f"`{file}`" if label.strip("`") in (file, posixpath.basename(file)) else f"{label} (`{file}`)"
    there = posixpath.relpath(places[file], posixpath.dirname(places[source]) or ".")
    return f"{picture}[{label}]({there}{hash_sign}{anchor})"


def _file(path: str, source: str) -> str:
    """The file that a link leads to. Runbooks link as the collector serves them: /runbooks/ID."""
    if path.startswith("/runbooks/"):
        return f"alerts{path}.md"
    return path[1:] if path.startswith("/") else posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
