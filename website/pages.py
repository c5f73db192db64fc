"""The pages of the site: documents of the repository at their place in the site, with links that fit there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ammeter.verdicts import BY_ID
from website.links import resolved
from website.lists import indented

ROOT = Path(__file__).resolve().parent.parent
PICTURES = "docs/pictures/verdicts"
SINGLE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "bench/README.md": "bench/index.md",
    "server/ammeter_server/web/static/mark.svg": "mark.svg",
}
"""File -> page, of files outside FOLDERS."""

FOLDERS = (("docs", ""), ("alerts/runbooks", "runbooks/"), ("bench/results", "bench/results/"))
"""Folder -> the place of its documents and pictures in the site."""

SUFFIXES = (".md", ".png", ".svg", ".webp")


def pages() -> dict[str, bytes]:
    """Returns every file of the site that MkDocs reads, by its path there."""
    places = dict(_places())
    return {
        place: _page(source, places).encode() if source.endswith(".md") else (ROOT / source).read_bytes()
        for source, place in places.items()
    }


def _places() -> Iterator[tuple[str, str]]:
    """Yields (file in the repository, its path in the site)."""
    yield from SINGLE.items()
    for folder, place in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            source = path.relative_to(ROOT).as_posix()
            if path.suffix in SUFFIXES:
                name = path.relative_to(ROOT / folder).as_posix()
                yield source, place + name.replace("README.md", "index.md")


def _page(source: str, places: dict[str, str]) -> str:
    text = (ROOT / source).read_text(encoding="utf-8")
    verdict = BY_ID.get(Path(source).stem) if source.startswith("alerts/") else None
    if verdict:
        text = _introduced(text, verdict.id, verdict.question, places)
    return indented(resolved(text, source, places))


def _introduced(runbook: str, verdict: str, question: str, places: dict[str, str]) -> str:
    """Puts the id, the question and the picture of a verdict below the heading of its runbook."""
    heading, _, rest = runbook.partition("\n")
    picture = f"{PICTURES}/{verdict}.svg"
    shown = f"\n![A run with {verdict}](/{picture})\n" if picture in places else ""
    return f"{heading}\n\n`{verdict}`: {question}\n{shown}{rest}"


def title_of(page: bytes) -> str:
    """The heading of a page, without marks."""
    found = re.search(r"^# (.+)$", page.decode(), re.MULTILINE)
    return found[1].replace("`", "") if found else ""
