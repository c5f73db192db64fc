"""Presents the scores: lines for the terminal, and wild.md and wild.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.common.tables import Row, markdown_table
from bench.wild.ablation import HOOKS
from bench.wild.scoring import Score

HEADING = ("noticed", "named first", "placed", "wrong statements", "programs")


@dataclass(frozen=True)
class Results:
    """All scores.

    Attributes:
        fresh: Whether held-out spellings and styles were drawn.
        pairs: Share of the pairs of values that occur.
        without: Hooks that were off in all programs.
        ablated: Scores of programs that were watched again without one hook.
    """

    scores: Sequence[Score]
    seed: int
    fresh: bool
    pairs: float
    without: str = ""
    ablated: Sequence[Score] = ()

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
        *([f"without {score.without}"] if score.without else []),
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
    counts = figures(results)
    rows = {
        "healthy programs with a page": _of(*counts["pages"]),
        "healthy programs with a ticket": _of(*counts["tickets"]),
        "wrong statements about healthy programs": str(sum(len(score.wrong) for score in results.healthy)),
        "weights unchanged by watching": _of(*counts["unchanged"]),
        "misses with a verdict that was not judged": _of(*counts["not_judged"]),
    }
    return [("what", *HEADING), ("broken programs", *_shares(results.broken)), *_single(rows)]


def _single(rows: Mapping[str, str]) -> list[Row]:
    """Rows with one figure."""
    return [(name, value, *["–"] * 4) for name, value in rows.items()]


def figures(results: Results) -> dict[str, tuple[int, int]]:
    """Each figure as a count and of how many."""
    broken, healthy = results.broken, results.healthy
    missed = [score for score in broken if score.missed]
    placed = [score.placed for score in broken if score.placed is not None]
    known = [score.unchanged for score in (*broken, *healthy) if score.unchanged is not None]
    return {
        "noticed": (sum(score.noticed for score in broken), len(broken)),
        "named": (sum(score.named for score in broken), len(broken)),
        "placed": (sum(placed), len(placed)),
        "pages": (sum(bool(score.pages) for score in healthy), len(healthy)),
        "tickets": (sum(bool(score.tickets) for score in healthy), len(healthy)),
        "unchanged": (sum(known), len(known)),
        "not_judged": (sum(bool(score.not_judged) for score in missed), len(missed)),
        "wrong": (sum(len(score.wrong) for score in (*broken, *healthy)), len(broken) + len(healthy)),
    }


def ablation(results: Results) -> list[Row]:
    """For each hook, the programs that were found with all hooks, and those that are found without it."""
    named = {(score.program, score.kind) for score in results.scores if score.named}
    hooks: dict[str, list[Score]] = {}
    for score in results.ablated:
        hooks.setdefault(score.without, []).append(score)
    rows: list[Row] = [("without", "still noticed", "still named first", "programs")]
    for hook, scores in sorted(hooks.items()):
        before = [score for score in scores if (score.program, score.kind) in named]
        noticed = _of(sum(score.noticed for score in scores), len(scores))
        rows.append((hook, noticed, _of(sum(score.named for score in before), len(before)), str(len(scores))))
    return rows


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


def lost(results: Results) -> list[str]:
    """A line for each program that is not found any more without a hook."""
    return [
        f"`{score.program}` {score.kind} without {score.without}: {', '.join(score.findings) or 'nothing'}"
        for score in results.ablated
        if not score.noticed
    ]


def troubles(results: Results) -> list[str]:
    changed = [f"`{score.program}` {score.kind}: other weights" for score in results.scores if score.unchanged is False]
    return changed + [f"`{score.program}` {score.kind}: {score.trouble}" for score in results.scores if score.trouble]


def markdown(results: Results, command: str) -> str:
    """The document wild.md."""
    draws = "held-out styles and spellings" if results.fresh else "the styles and spellings used in development"
    off = [f"In all programs these hooks of torch were off: {results.without}.", ""] if results.without else []
    lines = [
        "# The wild zoo: faults in programs that nobody wrote",
        "",
        f"Written by `{command}` from seed {results.seed} and {draws}: {len(results.broken)} broken and",
        f"{len(results.healthy)} healthy generated programs. They contain {100 * results.pairs:.0f} % of the pairs of",
        f"values of any two dimensions. {len(results.discarded)} programs were discarded: their numbers are those",
        "of the repaired program, the healthy program does not train, or it ends before a late `watch()`.",
        "",
        *off,
        *markdown_table(summary(results)),
        "",
    ]
    for name, value in DIMENSIONS.items():
        lines += [f"## By {name}", "", *markdown_table(by(results, name, value)), ""]
    if results.ablated:
        lines += ["## By hook that is off", "", *markdown_table(ablation(results)), ""]
    sections = {
        "Misses": misses(results),
        "Wrong statements": wrong_statements(results),
        "False alarms": false_alarms(results),
        "Programs that ended otherwise, or whose steps were counted otherwise": troubles(results),
        **({"Found with all hooks alone": lost(results)} if results.ablated else {}),
        "Discarded": [f"`{score.program}` {score.kind}: {score.discarded}" for score in results.discarded],
    }
    for title, entries in sections.items():
        lines += [f"## {title}", "", *([f"- {entry}" for entry in entries] or ["None."]), ""]
    return "\n".join(lines)


def write(results: Results, folder: Path, command: str) -> None:
    """Writes wild.md and wild.json into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "wild.md").write_text(markdown(results, command))
    plain = {
        "command": command,
        "seed": results.seed,
        "fresh": results.fresh,
        "without": results.without,
        "figures": figures(results),
        "scores": results.scores,
        "ablated": results.ablated,
    }
    (folder / "wild.json").write_text(json.dumps(msgspec.to_builtins(plain), indent=1) + "\n")


def write_ablation(results: Results, folder: Path, command: str) -> None:
    """Writes ablation.md into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ablation.md").write_text(ablation_markdown(results, command))


def ablation_markdown(results: Results, command: str) -> str:
    """The document ablation.md."""
    noticed = sum(score.noticed for score in results.broken)
    again = [score for score in results.ablated if score.noticed]
    unused = sorted(HOOKS.keys() - {score.without for score in results.ablated})
    sections = {
        "Found with all hooks alone": lost(results),
        "Wrong statements without a hook": [
            f"`{score.program}` {score.kind} without {score.without}: {wrong}"
            for score in results.ablated
            for wrong in score.wrong
        ],
        "Other weights without a hook": [
            f"`{score.program}` {score.kind} without {score.without}"
            for score in results.ablated
            if score.unchanged is False
        ],
    }
    lines = [
        "# Ablation: the wild zoo without one hook of torch",
        "",
        f"Written by `{command}`. With all hooks {noticed} of {len(results.broken)} broken programs are noticed.",
        "Each of them is watched again without each hook that it uses:",
        f"{_of(len(again), len(results.ablated))} are still noticed.",
        "",
        *markdown_table(ablation(results)),
        "",
        f"No program of the sample uses {', '.join(unused)}." if unused else "The sample uses all hooks.",
        "",
    ]
    for title, entries in sections.items():
        lines += [f"## {title}", "", *([f"- {entry}" for entry in entries] or ["None."]), ""]
    return "\n".join(lines)


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
