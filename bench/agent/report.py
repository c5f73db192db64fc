"""What was measured, as people read it: tables on the terminal, bench/results/agent.md and agent.json."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.table import Table

from bench.agent.comparison import Missing, Outcome

SHORT_HEADINGS = ("watched by", "norms", "full statistics", "place of a NaN", "loss scale")
HEADINGS = (
    "watched by",
    "pairs",
    "bare ms",
    "watched ms",
    "ratio",
    "pairs: quartile, median, quartile",
    "worst pair",
    "ratio of means",
)


@dataclass
class Section:
    """One training: what was measured of each peer, by name, each repeat by itself."""

    kind: str
    precision: str
    short: bool
    repeats: dict[str, list[Outcome]] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)

    def add(self, found: Iterable[Outcome | Missing]) -> None:
        for each in found:
            if isinstance(each, Missing):
                self.missing.append(each)
            else:
                self.repeats.setdefault(each.name, []).append(each)

    @property
    def outcomes(self) -> list[Outcome]:
        """One of each peer, all its repeats together."""
        return [together(each) for each in self.repeats.values()]

    def ratios(self, name: str) -> list[float]:
        """Of each repeat."""
        return [each.ratio for each in self.repeats.get(name, [])]

    @property
    def title(self) -> str:
        return f"Short steps: {self.kind}" if self.short else self.kind

    def ratio(self, name: str) -> str:
        """As the first table has it; of several repeats, their middle, their smallest and their largest."""
        ratios = self.ratios(name)
        if len(ratios) > 1:
            return f"{median(ratios):.3f} ({len(ratios)} repeats: {min(ratios):.3f} to {max(ratios):.3f})"
        return "".join(f"{each:.2f}" if each > 1.1 else f"{each:.3f}" for each in ratios) or "–"


@dataclass
class Measured:
    """Everything. load: of the machine, before; plan: steps in a block, in words; seconds: that it took."""

    load: float
    plan: str
    sections: list[Section] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, kind: str, precision: str, found: Iterable[Outcome | Missing], *, short: bool) -> None:
        for section in self.sections:
            if (section.kind, section.short) == (kind, short):
                section.add(found)
                return
        self.sections.append(Section(kind, precision, short))
        self.sections[-1].add(found)

    @property
    def long(self) -> list[Section]:
        return [each for each in self.sections if not each.short]

    @property
    def where(self) -> str:
        """The machine, in words."""
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else processor()
        return f"{device}, {os.cpu_count()} cores, torch {torch.__version__}"


def together(repeats: Sequence[Outcome]) -> Outcome:
    """All blocks of several repeats; of what they say of themselves, the middle."""
    first = repeats[0]
    return Outcome(
        first.name,
        first.gives,
        first.own_model,
        [block for each in repeats for block in each.bare],
        [block for each in repeats for block in each.watched],
        {name: median(each.said[name] for each in repeats) for name in first.said},
    )


def comparison(measured: Measured) -> list[tuple[str, ...]]:
    """The table people quote: what one gets, and the ratio to a bare step."""
    named = {each.name: each for section in measured.long for each in section.outcomes}
    heading = (*SHORT_HEADINGS, *(f"{section.precision} ratio" for section in measured.long))
    rows = [
        (name, gives.norms, gives.statistics, gives.place, gives.scale, *(each.ratio(name) for each in measured.long))
        for name, gives in ((name, each.gives) for name, each in named.items())
    ]
    return [heading, *rows]


def details(section: Section) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [HEADINGS]
    for each in section.outcomes:
        low, middle, high = quartiles(each.pairs)
        rows.append(
            (
                each.name + (" *" if each.own_model else ""),
                str(len(each.pairs)),
                f"{1000 * median(each.bare):.2f}",
                f"{1000 * median(each.watched):.2f}",
                f"{each.ratio:.3f}",
                f"{low:.3f} / {middle:.3f} / {high:.3f}",
                f"{max(each.pairs):.3f}",
                f"{each.mean_ratio:.3f}",
            )
        )
    return rows


def remarks(measured: Measured) -> list[str]:
    """The repeats, what Ammeter says of itself, who was left out."""
    said = []
    for section in measured.sections:
        title = section.title
        for name, ratios in ((name, section.ratios(name)) for name, found in section.repeats.items() if len(found) > 1):
            said.append(
                f"{title}: {name}: {len(ratios)} independent repeats: {', '.join(f'{each:.3f}' for each in ratios)}; "
                f"median {median(ratios):.3f}, max {max(ratios):.3f}."
            )
        said += [
            f"{title}: {each.name} says of itself {100 * each.said['overhead']:.2f} % of a step (median; "
            f"{100 * each.said['mean_overhead']:.2f} % of all time); norms were read in "
            f"{100 * each.said['norms']:.0f} % of the steps, full statistics in {100 * each.said['statistics']:.0f} %."
            for each in section.outcomes
            if "overhead" in each.said
        ]
        said += [f"{title}: left out: {each.name}: {each.why}." for each in section.missing]
    return said


def shown(measured: Measured) -> list[Table]:
    """For the terminal."""
    shown = [_rich("What one gets, and what a step takes", comparison(measured))] if measured.long else []
    for section in measured.sections:
        shown.append(_rich(section.title, details(section)))
    return shown


def write(measured: Measured, folder: Path, command: str) -> None:
    """agent.md and agent.json in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agent.md").write_text(markdown(measured, command))
    (folder / "agent.json").write_text(json.dumps(plain(measured, command), indent=1) + "\n")


def markdown(measured: Measured, command: str) -> str:
    lines = ["# What watching costs", "", *_story(measured, command), ""]
    if measured.long:
        lines += [*piped(comparison(measured)), ""]
    for section in measured.sections:
        lines += [f"## {section.title}", "", *piped(details(section)), ""]
    lines += ["## Remarks", "", *(f"- {each}" for each in remarks(measured)), ""]
    lines += ["A peer with * cannot be detached: it has a model of its own, of the same size and start.", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _story(measured: Measured, command: str) -> list[str]:
    return [
        f"{measured.where}; load before: {measured.load:.1f}; {measured.seconds / 60:.1f} minutes; `{command}`.",
        "",
        f"A GPT is trained with AdamW, clipping and autocast, bare and watched, in alternating blocks of one process "
        f"({measured.plan}). Within budget: as often as 1 % of the time allows. The ratio is that of a typical pair of "
        "neighbouring blocks: the geometric mean without the fifth of the pairs at either end, the same for every row. "
        "Rare heavy steps are in full in the ratio of means only, and so is whatever else the machine did. "
        "The first row compares bare blocks with bare blocks, as often as Ammeter's default preset is measured: "
        "differences of the size of its own mean nothing; rows of fewer pairs waver more.",
    ]


def plain(measured: Measured, command: str) -> dict[str, Any]:
    return {
        "command": command,
        "where": measured.where,
        "load": measured.load,
        "seconds": round(measured.seconds, 1),
        "sections": [
            {
                "kind": section.kind,
                "short": section.short,
                "repeats": {name: [round(each, 5) for each in section.ratios(name)] for name in section.repeats},
                "outcomes": [each.plain() for each in section.outcomes],
                "missing": {each.name: each.why for each in section.missing},
            }
            for section in measured.sections
        ],
    }


def piped(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A table of Markdown."""
    heading, *rest = ["| " + " | ".join(row) + " |" for row in rows]
    return [heading, "|" + "---|" * len(rows[0]), *rest]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    return ordered[len(ordered) // 4], median(ordered), ordered[3 * len(ordered) // 4]


def processor() -> str:
    """What the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def _rich(title: str, rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(*rows[0], title=title)
    for row in rows[1:]:
        table.add_row(*row)
    return table
