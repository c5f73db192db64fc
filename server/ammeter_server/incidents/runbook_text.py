"""The text of the runbooks, and what of it an alert carries itself: whoever is paged may not reach any of them."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from ammeter.wire import printable

FOLDER = files("ammeter_server") / "assets" / "runbooks"
"""A link to alerts/runbooks in the source; a folder of its own in the installed package."""

MAX_STEPS = 3
MAX_STEPS_CHARS = 1200
"""Characters of all steps together: services cut a page that is longer than some thousands."""


def text(name: str) -> str:
    """The runbook as Markdown. Raises FileNotFoundError where there is none."""
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


@cache
def first_steps(name: str) -> str:
    """The first three of its steps, what to look at before what to do: a line each, as plain text. '' where there is no
    runbook."""
    try:
        found = text(name)
    except FileNotFoundError:  # of a verdict that this version has no more
        return ""
    sections = re.findall(
        r"^## (?:How to check|What to do first|Look here first|Do this)$(.*?)(?=^## |\Z)",
        found,
        re.MULTILINE | re.DOTALL,
    )
    steps = re.findall(r"^\d+\. (.*?)(?=^\d+\. |^\S|\Z)", "\n".join(sections), re.MULTILINE | re.DOTALL)
    lines = (" ".join(_plain(step).split()) for step in steps[:MAX_STEPS])
    numbered = "\n".join(f"{number}. {line}" for number, line in enumerate(lines, start=1))
    return printable.shortened(numbered, MAX_STEPS_CHARS)


def _plain(markdown: str) -> str:
    """Without the signs of links and code."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown).replace("`", "").replace("**", "")
