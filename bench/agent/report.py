"""Presents the results: tables for the terminal, and bench/results/agent.md and agent.json."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.table import Table

from bench.agent.ammeter_peers import SettledDefault
from bench.agent.comparison import Outcome, Skipped
from bench.common.machine import cpu_model
from bench.common.tables import Row, markdown_table, terminal_table

COVERAGE_HEADINGS = ("watched by", "norms", "full statistics", "place of a NaN", "loss scale")
DETAIL_HEADINGS = (
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
    """The outcomes on one training: for each peer by name, one per repeat."""

    training: str
    precision: str
    short: bool
    repeats: dict[str, list[Outcome]] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)

    def add(self, outcomes: Iterable[Outcome | Skipped]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Skipped):
                self.skipped.append(outcome)
            else:
                self.repeats.setdefault(outcome.name, []).append(outcome)

    @property
    def outcomes(self) -> list[Outcome]:
        """One outcome for each peer, with all its repeats combined."""
        return [combined(repeats) for repeats in self.repeats.values()]

    def ratios(self, name: str) -> list[float]:
        """The ratio of each repeat."""
        return [outcome.ratio for outcome in self.repeats.get(name, [])]

    @property
    def most_repeats(self) -> int:
        return max(map(len, self.repeats.values()), default=0)

    @property
    def title(self) -> str:
        return f"Short steps: {self.training}" if self.short else self.training

    def ratio(self, name: str) -> str:
        """The ratio as the tables show it: median and range of the repeats, and their number if some are missing."""
        ratios = self.ratios(name)
        if not ratios:
            return "–"
        digits = 3 if median(ratios) <= 1.1 else 2
        spread = f" ({min(ratios):.{digits}f} to {max(ratios):.{digits}f})" if len(ratios) > 1 else ""
        count = f", {len(ratios)} of {self.most_repeats}" if len(ratios) < self.most_repeats else ""
        return f"{median(ratios):.{digits}f}{spread}{count}"


@dataclass
class Results:
    """All results.

    Attributes:
        load: Load of the machine before the measurement.
        plan: Steps in a block, in words.
        repeats: Independent repeats of everything.
        seconds: Duration of the measurement.
    """

    load: float
    plan: str
    repeats: int
    sections: list[Section] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, training: str, precision: str, outcomes: Iterable[Outcome | Skipped], *, short: bool) -> None:
        for section in self.sections:
            if (section.training, section.short) == (training, short):
                section.add(outcomes)
                return
        self.sections.append(Section(training, precision, short))
        self.sections[-1].add(outcomes)

    @property
    def long(self) -> list[Section]:
        return [section for section in self.sections if not section.short]

    @property
    def machine(self) -> str:
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else cpu_model()
        return f"{device}, {os.cpu_count()} cores, torch {torch.__version__}"


def combined(repeats: Sequence[Outcome]) -> Outcome:
    """All blocks of several repeats, and the medians of their self-reported figures."""
    first = repeats[0]
    return Outcome(
        first.name,
        first.coverage,
        first.own_model,
        [block for outcome in repeats for block in outcome.bare],
        [block for outcome in repeats for block in outcome.watched],
        {name: median(outcome.self_reported[name] for outcome in repeats) for name in first.self_reported},
    )


def comparison(results: Results) -> list[Row]:
    """The main table: the coverage of each peer and its ratio to a bare step."""
    coverage = {outcome.name: outcome.coverage for section in results.long for outcome in section.outcomes}
    heading = (*COVERAGE_HEADINGS, *(f"{section.precision} ratio" for section in results.long))
    rows = [
        (
            name,
            provided.norms,
            provided.statistics,
            provided.place,
            provided.scale,
            *(section.ratio(name) for section in results.long),
        )
        for name, provided in coverage.items()
    ]
    return [heading, *rows]


def details(section: Section) -> list[Row]:
    rows: list[Row] = [DETAIL_HEADINGS]
    for outcome in section.outcomes:
        low, middle, high = quartiles(outcome.pairs)
        rows.append(
            (
                outcome.name + (" *" if outcome.own_model else ""),
                str(len(outcome.pairs)),
                f"{1000 * median(outcome.bare):.2f}",
                f"{1000 * median(outcome.watched):.2f}",
                section.ratio(outcome.name),
                f"{low:.3f} / {middle:.3f} / {high:.3f}",
                f"{max(outcome.pairs):.3f}",
                f"{outcome.mean_ratio:.3f}",
            )
        )
    return rows


def remarks(results: Results) -> list[str]:
    """Ammeter's own account of its cost, and the skipped peers."""
    lines = []
    for section in results.sections:
        title = section.title
        for outcome in section.outcomes:
            if "overhead" in (reported := outcome.self_reported):
                lines.append(
                    f"{title}: {outcome.name} reports {100 * reported['overhead']:.2f} % of a step as its own cost "
                    f"(median; {100 * reported['mean_overhead']:.2f} % of all time). It read norms in "
                    f"{100 * reported['norms']:.0f} % of the steps, full statistics in "
                    f"{100 * reported['statistics']:.0f} %."
                )
        lines += [
            f"{title}: left out{f' {count} times' if skipped.name in section.repeats else ''}: "
            f"{skipped.name}: {skipped.reason}."
            for skipped, count in Counter(section.skipped).items()
        ]
    return lines


def terminal_tables(results: Results) -> list[Table]:
    tables = [terminal_table(comparison(results), "Coverage and cost of a step")] if results.long else []
    return tables + [terminal_table(details(section), section.title) for section in results.sections]


def write(results: Results, folder: Path, command: str) -> None:
    """Writes agent.md and agent.json into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agent.md").write_text(markdown(results, command))
    (folder / "agent.json").write_text(json.dumps(to_json(results, command), indent=1) + "\n")


def markdown(results: Results, command: str) -> str:
    lines = ["# The cost of watching", "", *_method(results, command), ""]
    if results.long:
        lines += [*markdown_table(comparison(results)), ""]
    for section in results.sections:
        lines += [f"## {section.title}", "", *markdown_table(details(section)), ""]
    lines += ["## Remarks", "", *(f"- {remark}" for remark in remarks(results)), ""]
    lines += ["A peer with * cannot be detached. It has a model of its own, of the same size and initial weights.", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _method(results: Results, command: str) -> list[str]:
    return [
        f"{results.machine}; load before: {results.load:.1f}; {results.seconds / 60:.1f} minutes; `{command}`.",
        "",
        f"A GPT is trained with AdamW, clipping and autocast, bare and watched, in alternating blocks of one process "
        f"({results.plan}). Within budget: as often as 1 % of the time allows. The ratio is that of a typical pair of "
        "neighbouring blocks: the geometric mean without the lowest and the highest fifth, rounded down. It is the "
        f"median of {results.repeats} repeats, each with a training of its own; in brackets stand the lowest and the "
        "highest repeat. The other columns are of the pairs of all repeats. The ratio of means includes rare expensive "
        "steps in full, and all disturbances by the machine. The first row compares bare blocks with bare blocks, as "
        "often as Ammeter's default preset is measured: differences of its size have no meaning; rows with fewer pairs "
        f"vary more. Ammeter has watched {SettledDefault.settling_steps} long steps before its first block: a young "
        "run is read more often.",
    ]


def to_json(results: Results, command: str) -> dict[str, Any]:
    return {
        "command": command,
        "where": results.machine,
        "load": results.load,
        "seconds": round(results.seconds, 1),
        "sections": [
            {
                "kind": section.training,
                "short": section.short,
                "repeats": {name: [round(ratio, 5) for ratio in section.ratios(name)] for name in section.repeats},
                "outcomes": [outcome.to_json() for outcome in section.outcomes],
                "missing": {skipped.name: skipped.reason for skipped in section.skipped},
            }
            for section in results.sections
        ],
    }


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    return ordered[len(ordered) // 4], median(ordered), ordered[3 * len(ordered) // 4]
