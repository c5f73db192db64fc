"""Presents the scores: lines for the terminal, and wild.md and wild.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.common.tables import Row, markdown_table
from bench.wild.scoring import Score

HEADING = ("noticed", "named first", "placed", "wrong statements", "programs")


@dataclass(frozen=True)
class Results:
    """All scores. fresh: whether held-out spellings and styles were drawn. pairs: share of pairs that occur."""

    scores: Sequence[Score]
    seed: int
    fresh: bool
    pairs: float

    @property
    def broken(self) -> list[Score]:
        return [score for score in self.scores if score.is_broken and not score.discarded]

    @property
    def healthy(self) -> list[Score]:
        return [score for score in self.scores if not score.is_broken and not score.discarded]

    @property
    def discarded(self) -> list[Score]:
        return [score for score in self.scores if score.discarded]


def line_of(score: Score) -> str:
    """One program for the terminal."""
    found = ", ".join(score.findings) or "nothing"
    if score.discarded:
        return f"{score.program} {score.kind}: discarded, {score.discarded}"
    if not score.is_broken:
        return f"{score.program} {score.kind}: {found}{_changed(score)}"
    marks = [
        "noticed" if score.noticed else "missed",
        "named" if score.named else "not named",
        *({True: ["placed"], False: ["not placed"], None: []}[score.placed]),
        *(f"wrong: {wrong}" for wrong in score.wrong),
    ]
    return f"{score.program} {score.kind}: {found} ({'; '.join(marks)}){_changed(score)}"


def _changed(score: Score) -> str:
    changed = " CHANGED WEIGHTS" if score.unchanged is False else ""
    return changed + (f" [{score.trouble.splitlines()[-1]}]" if score.trouble else "")


def summary(results: Results) -> list[Row]:
    """The main table."""
    healthy = results.healthy
    known = [score.unchanged for score in (*results.broken, *healthy) if score.unchanged is not None]
    return [
        ("what", *HEADING),
        ("broken programs", *_shares(results.broken)),
        ("healthy programs with a page", _of(sum(bool(score.pages) for score in healthy), len(healthy)), *["–"] * 4),
        (
            "healthy programs with a ticket",
            _of(sum(bool(score.tickets) for score in healthy), len(healthy)),
            *["–"] * 4,
        ),
        ("wrong statements about healthy programs", str(sum(len(score.wrong) for score in healthy)), *["–"] * 4),
        ("weights unchanged by watching", _of(sum(known), len(known)), *["–"] * 4),
    ]


def by(results: Results, name: str, value: Callable[[Score], str]) -> list[Row]:
    """The broken programs by one of their values."""
    groups: dict[str, list[Score]] = {}
    for score in results.broken:
        groups.setdefault(value(score), []).append(score)
    return [(name, *HEADING), *((key, *_shares(groups[key])) for key in sorted(groups))]


DIMENSIONS: dict[str, Callable[[Score], str]] = {
    "fault": lambda score: score.recipe.fault if score.kind == "fault" else score.kind,
    "spelling": lambda score: f"{score.recipe.fault}: {score.recipe.spelling}" if score.kind == "fault" else score.kind,
    "style": lambda score: score.recipe.style,
    "attachment": lambda score: score.recipe.attach,
    "time course": lambda score: score.recipe.course if score.kind == "fault" else "constant",
    "precision": lambda score: score.recipe.precision,
    "step": lambda score: score.recipe.pace,
}


def misses(results: Results) -> list[str]:
    """A line for each broken program that was not named first or not placed."""
    return [
        f"`{score.program}` {score.kind}: {', '.join(score.findings) or 'nothing'}"
        f"{'' if score.noticed else '; not noticed'}{'; not placed' if score.placed is False else ''}"
        f"{'; not judged: ' + ', '.join(score.not_judged) if score.not_judged else ''}"
        for score in results.broken
        if score.missed
    ]


def false_alarms(results: Results) -> list[str]:
    return [
        f"`{score.program}` {score.kind}: {', '.join(score.findings)}" for score in results.healthy if score.findings
    ]


def wrong_statements(results: Results) -> list[str]:
    return [f"`{score.program}` {score.kind}: {wrong}" for score in results.scores for wrong in score.wrong]


def troubles(results: Results) -> list[str]:
    changed = [f"`{score.program}` {score.kind}: other weights" for score in results.scores if score.unchanged is False]
    return changed + [f"`{score.program}` {score.kind}: {score.trouble}" for score in results.scores if score.trouble]


def markdown(results: Results, command: str) -> str:
    draws = "held-out styles and spellings" if results.fresh else "the styles and spellings used in development"
    lines = [
        "# The wild zoo: faults in programs that nobody wrote",
        "",
        f"Written by `{command}` from seed {results.seed} and {draws}: {len(results.broken)} broken and",
        f"{len(results.healthy)} healthy generated programs. They contain {100 * results.pairs:.0f} % of the pairs of",
        f"values of any two dimensions. {len(results.discarded)} programs were discarded: their numbers are those",
        "of the repaired program, or the healthy program does not train.",
        "",
        *markdown_table(summary(results)),
        "",
    ]
    for name, value in DIMENSIONS.items():
        lines += [f"## By {name}", "", *markdown_table(by(results, name, value)), ""]
    sections = {
        "Misses": misses(results),
        "Wrong statements": wrong_statements(results),
        "False alarms": false_alarms(results),
        "Programs that ended otherwise": troubles(results),
        "Discarded": [f"`{score.program}` {score.kind}: {score.discarded}" for score in results.discarded],
    }
    for title, entries in sections.items():
        lines += [f"## {title}", "", *([f"- {entry}" for entry in entries] or ["None."]), ""]
    return "\n".join(lines)


def write(results: Results, folder: Path, command: str) -> None:
    """Writes wild.md and wild.json into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "wild.md").write_text(markdown(results, command))
    plain = {"command": command, "seed": results.seed, "fresh": results.fresh, "scores": results.scores}
    (folder / "wild.json").write_text(json.dumps(msgspec.to_builtins(plain), indent=1) + "\n")


def _shares(scores: Iterable[Score]) -> Row:
    scores = list(scores)
    placed = [score.placed for score in scores if score.placed is not None]
    return (
        _of(sum(score.noticed for score in scores), len(scores)),
        _of(sum(score.named for score in scores), len(scores)),
        _of(sum(placed), len(placed)),
        str(sum(len(score.wrong) for score in scores)),
        str(len(scores)),
    )


def _of(count: int, of: int) -> str:
    return f"{count} of {of} ({100 * count / of:.0f} %)" if of else "–"
