"""The tables of verdicts in docs/verdicts.md and README.md.

They are generated from the verdicts and from the section "How it is detected" of their runbooks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ammeter.verdicts import ALL, BY_FAMILY, FAMILIES
from ammeter.verdicts.framework.finding import Verdict

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| (signal|severity|threshold) \| (.*) \|$", re.MULTILINE)


def files() -> dict[str, str]:
    """Returns both documents by their path in the repository."""
    return {"docs/verdicts.md": _verdicts(), "README.md": _readme()}


def _verdicts() -> str:
    text = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8")
    text = _with_rows(text, "| verdict | question |", [_row(verdict) for verdict in ALL])
    return _with_rows(text, "| verdict | explains |", [_explained(verdict) for verdict in ALL if verdict.explains])


def _readme() -> str:
    """Replaces the names in the README's table, whose rows are in the order of FAMILIES."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    labels = re.findall(r"^\| (.*?) \| `", text[text.index("| about | verdicts |") :], re.MULTILINE)
    rows = [
        f"| {label} | {_names(verdict.id for verdict in ALL if verdict.id in BY_FAMILY[name])} |"
        for label, name in zip(labels, FAMILIES, strict=True)
    ]
    return _with_rows(text, "| about | verdicts |", rows)


def _with_rows(text: str, heading: str, rows: list[str]) -> str:
    """Replaces the rows below the heading of a table."""
    pattern = rf"^({re.escape(heading)}.*\n\|[-|]+\|\n)(?:\|.*\n)+"
    return re.sub(pattern, lambda match: match[1] + "".join(f"{row}\n" for row in rows), text, flags=re.MULTILINE)


def _row(verdict: Verdict) -> str:
    fields = dict(ROW.findall((ROOT / "alerts" / "runbooks" / f"{verdict.id}.md").read_text(encoding="utf-8")))
    runbook = f"[runbook](../alerts/runbooks/{verdict.id}.md)"
    cells = (f"`{verdict.id}`", verdict.question, fields["signal"], fields["severity"], fields["threshold"], runbook)
    return f"| {' | '.join(cells)} |"


def _explained(verdict: Verdict) -> str:
    return f"| `{verdict.id}` | {_names(verdict.explains)} |"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
