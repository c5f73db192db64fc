"""The document that shows the pictures of all verdicts."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from html import unescape
from pathlib import Path

from ammeter.verdicts import BY_FAMILY
from ammeter.verdicts.framework.finding import Verdict
from website.pages import PICTURES, ROOT

PAGE = "docs/verdict-pictures.md"
FOLDER = ROOT / PICTURES
HEAD = """# Pictures of verdicts

Each picture is a run of the [reference trainer](../trainer/train.py) with the fault of that
verdict: loss, loss scale and gradient norm by step, and a column that the verdict reads if it shows
more. The line marks the first step of the symptom, the dashes the step at which the verdict was
reached, and triangles at the upper edge NaN and Inf. Ticks below the loss scale are skipped steps.

Many of these faults do not show in the loss. The heading of a picture is the title of the finding.
To see a run yourself, train with the fault and read the report:

```sh
python trainer/broken.py --tiny --fault overflow-storm
ammeter report
```

The pictures are drawn from recorded runs by `python -m website.pictures`, with all values read at
every step; at the default budget, fewer are. Two ranks, or a run and its baseline, have a line
each. A resumed run is shown from its resume on.
"""
WITHOUT = "It has no picture, because no run on a CPU shows it."


def page() -> str:
    """Returns the document for the pictures that exist."""
    return HEAD + "".join(_lines())


def _lines() -> Iterator[str]:
    for name, verdicts in BY_FAMILY.items():
        yield f"\n## {name.replace('_', ' ').capitalize()}\n"
        for verdict in verdicts.values():
            yield from _entry(verdict)


def _entry(verdict: Verdict) -> Iterator[str]:
    picture = FOLDER / f"{verdict.id}.svg"
    words = f"{verdict.question} [Runbook](../alerts/runbooks/{verdict.id}.md)"
    yield f"\n### {verdict.id}\n\n{_wrapped(words if picture.exists() else f'{words} {WITHOUT}')}\n"
    if picture.exists():
        yield f"\n{_wrapped(f'![{title_in(picture)}](pictures/verdicts/{picture.name})')}\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def title_in(picture: Path) -> str:
    """The title of the finding that a picture shows."""
    found = re.search(r"<desc>(.*)</desc>", picture.read_text(encoding="utf-8"))
    return unescape(found[1]) if found else picture.stem
