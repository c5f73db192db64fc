"""`ammeter runbook VERDICT`: prints a runbook, which is part of every installation."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "runbooks"
"""A link to alerts/runbooks in the source; a real folder in the installed package."""

EXIT_UNKNOWN = 2

_LINK = re.compile(r"\[([^]]*)\]\(/runbooks/([a-z0-9-]+)\)")
"""Links between runbooks use the address at which the collector serves them."""


def main(words: Sequence[str]) -> int:
    """Prints the runbook, or all names if none is given.

    Returns 2 for an unknown name.
    """
    given = _arguments(words)
    names = sorted(path.stem for path in FOLDER.glob("*.md"))
    if given.name is None:
        print(json.dumps({"items": names}) if given.json else "\n".join(names))
        return 0
    if given.name not in names:
        print(f"ammeter runbook: {given.name!r} is not a runbook; {suggestion(given.name, names)}", file=sys.stderr)
        return EXIT_UNKNOWN
    text = (FOLDER / f"{given.name}.md").read_text(encoding="utf-8")
    if given.json:
        print(json.dumps({"name": given.name, "title": text.partition("\n")[0].lstrip("# "), "markdown": text}))
    else:
        _show(text)
    return 0


def suggestion(name: str, names: Iterable[str]) -> str:
    """Suggests the closest names, or lists all names if none is close."""
    known = list(names)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"use one of {', '.join(known)}"


def _show(text: str) -> None:
    """Renders Markdown on a terminal; prints the plain text into a pipe."""
    markdown = _LINK.sub(lambda link: f"{link[1]} (`ammeter runbook {link[2]}`)", text)
    if not sys.stdout.isatty():
        print(markdown, end="")
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(markdown, hyperlinks=False))


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ammeter runbook", description="Prints the runbook of a verdict: first steps, causes and fixes."
    )
    parser.add_argument("name", nargs="?", help="a verdict, such as scale-collapse; default: list all names")
    parser.add_argument("--json", action="store_true", help="print name, title and Markdown text as JSON")
    return parser.parse_args(words)
