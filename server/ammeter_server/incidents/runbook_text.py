"""Reads the runbooks; extracts their first steps, which alerts contain in case no runbook can be reached."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from ammeter.wire import printable

FOLDER = files("ammeter_server") / "assets" / "runbooks"
"""A link to alerts/runbooks in the source; a folder of its own in the installed package."""

MAX_STEPS = 3
MAX_STEPS_CHARS = 1200
"""Of all steps together: services truncate messages of more than some thousand characters."""


def alert_name(name: str) -> str:
    """'scale-collapse' -> 'AmmeterScaleCollapse'."""
    return "Ammeter" + "".join(word.capitalize() for word in name.split("-"))


def text(name: str) -> str:
    """The runbook as Markdown. Raises FileNotFoundError where there is none."""
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


@cache
def first_steps(name: str) -> str:
    """The first steps of a runbook, checks before actions, as plain text. Empty without a runbook."""
    try:
        markdown = text(name)
    except FileNotFoundError:  # of a verdict that this version no longer has
        return ""
    sections = re.findall(
        r"^## (?:How to check|What to do first)$(.*?)(?=^## |\Z)",
        markdown,
        re.MULTILINE | re.DOTALL,
    )
    steps = re.findall(r"^\d+\. (.*?)(?=^\d+\. |^\S|\Z)", "\n".join(sections), re.MULTILINE | re.DOTALL)
    lines = (" ".join(_plain(step).split()) for step in steps[:MAX_STEPS])
    numbered = "\n".join(f"{number}. {line}" for number, line in enumerate(lines, start=1))
    return printable.shortened(numbered, MAX_STEPS_CHARS)


def _plain(markdown: str) -> str:
    """Removes the syntax of links, code and emphasis."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown).replace("`", "").replace("**", "")
