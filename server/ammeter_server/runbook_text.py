"""The text of the runbooks, and what of it an alert carries itself: whoever is paged may not reach any of them."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

FOLDER = files("ammeter_server") / "assets" / "runbooks"
"""A link to alerts/runbooks in the source; a folder of its own in the installed package."""

STEPS = 3
LONGEST_STEPS = 1200
"""Characters of all steps together: services cut a page that is longer than some thousands."""


def text(name: str) -> str:
    """The runbook as Markdown. Raises FileNotFoundError where there is none."""
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


@cache
def first_steps(name: str) -> str:
    """The first three of what its reader looks at first, a line each, as plain text; '' where there is no runbook."""
    try:
        (section,) = re.findall(r"^## Look here first$(.*?)(?=^## |\Z)", text(name), re.MULTILINE | re.DOTALL)
    except (FileNotFoundError, ValueError):  # of a verdict that this version has no more
        return ""
    steps = re.findall(r"^(\d+\. .*?)(?=^\d+\. |^\S|\Z)", section, re.MULTILINE | re.DOTALL)
    said = "\n".join(" ".join(_plain(step).split()) for step in steps[:STEPS])
    return said if len(said) <= LONGEST_STEPS else said[: LONGEST_STEPS - 1] + "…"


def _plain(markdown: str) -> str:
    """Without the signs of links and code."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown).replace("`", "").replace("**", "")
