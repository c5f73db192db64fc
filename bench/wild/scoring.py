"""Scores one watched program: what the report says against what the recipe and the oracle know."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from bench.wild import claims
from bench.wild.claims import is_part
from bench.wild.faults import FAULTS, Fault
from bench.wild.mutants import MUTANTS, PREFIX
from bench.wild.oracle import Row, own_name
from bench.wild.pieces.styles import STYLES
from bench.wild.processes import SCRIPT, Watched
from bench.wild.recipe import Recipe
from bench.wild.truth import Truth

HEALTHY_KINDS = ("twin", "alike")


def fault_of(recipe: Recipe, kind: str) -> Fault:
    """What a broken program has to be called."""
    return MUTANTS[kind.removeprefix(PREFIX)].fault if kind.startswith(PREFIX) else FAULTS[recipe.fault]


class Score(msgspec.Struct, frozen=True):
    """The score of one program.

    Attributes:
        program: Id of the recipe, from which the program can be made again.
        kind: "fault", "twin", "alike", or "mutant:" and its name.
        discarded: Why the program proves nothing, such as numbers that are those of the twin; else ''.
        noticed: A finding of the right family after the fault began.
        named: The first finding of a run has the right verdict.
        placed: The right module or line; None for a fault without a place, or one that was not noticed.
        findings: Verdicts of the findings, causes first.
        not_judged: Verdicts that could not read what they need.
        wrong: Statements that the oracle contradicts.
        unchanged: Whether the final weights are those of the bare run; None where none were printed.
        pages, tickets: Verdicts of the findings by severity.
        without: The hook that was off, if this is an ablation.
    """

    program: str
    kind: str
    discarded: str = ""
    noticed: bool = False
    named: bool = False
    placed: bool | None = None
    findings: list[str] = []
    not_judged: list[str] = []
    wrong: list[str] = []
    unchanged: bool | None = None
    pages: list[str] = []
    tickets: list[str] = []
    trouble: str = ""
    seconds: float = 0.0
    without: str = ""

    @property
    def recipe(self) -> Recipe:
        return Recipe.parse(self.program)

    @property
    def is_broken(self) -> bool:
        return self.kind not in HEALTHY_KINDS

    @property
    def missed(self) -> bool:
        return self.is_broken and not self.discarded and (not self.named or self.placed is False)


def score(recipe: Recipe, kind: str, truth: Truth, watched: Watched, seconds: float = 0.0) -> Score:
    """The score of a watched program with this truth."""
    watched = msgspec.structs.replace(watched, reports=[_with_own_names(report) for report in watched.reports])
    findings = [finding for report in watched.reports for finding in report["findings"]]
    result = Score(
        str(recipe),
        kind,
        findings=[finding["verdict"] for finding in findings],
        not_judged=sorted({name for report in watched.reports for name in _not_judged(report)}),
        wrong=_wrong(recipe, kind, truth, watched),
        unchanged=watched.digests == truth.recording.digests if watched.digests else None,
        pages=[finding["verdict"] for finding in findings if finding["severity"] == "page"],
        tickets=[finding["verdict"] for finding in findings if finding["severity"] == "ticket"],
        trouble=_trouble(recipe, watched, truth),
        seconds=seconds,
    )
    if kind in HEALTHY_KINDS:
        return result
    fault = fault_of(recipe, kind)
    right = [finding for finding in findings if _is_right(finding, fault, truth, STYLES[recipe.style].counts_steps)]
    first = [report["findings"][0]["verdict"] for report in watched.reports if report["findings"]]
    return msgspec.structs.replace(
        result,
        noticed=bool(right),
        named=any(verdict in _accepted(fault, truth) for verdict in first),
        placed=any(_is_placed(finding, truth) for finding in right) if fault.place and right else None,
    )


def _with_own_names(report: dict[str, Any]) -> dict[str, Any]:
    """A report whose modules and tensors have the names that they have without the wrapper of a framework."""

    def renamed(finding: dict[str, Any]) -> dict[str, Any]:
        names = {kind: own_name(finding[kind]) for kind in ("module", "tensor") if finding.get(kind)}
        return {**finding, **names, "consequences": [renamed(each) for each in finding.get("consequences") or ()]}

    return {**report, "findings": [renamed(finding) for finding in report["findings"]]}


def _is_right(finding: dict[str, Any], fault: Fault, truth: Truth, counts_steps: bool) -> bool:
    """Whether a finding, or a consequence in it, is of the fault's family and came after the fault began."""
    family = {*fault.accepted, *fault.related}
    verdicts = {finding["verdict"], *(_verdict(consequence) for consequence in finding.get("consequences") or ())}
    opened = finding["opened_step"] + truth.program.first_watched
    is_early = counts_steps and truth.symptom is not None and opened < truth.symptom
    if is_early and claims.is_half_state(finding["verdict"], truth, finding["opened_step"]):
        is_early = False
    return bool(verdicts & family) and not is_early


def _accepted(fault: Fault, truth: Truth) -> tuple[str, ...]:
    """The verdicts that name a fault: of weights that were NaN before they were watched, nothing more can be known."""
    first = truth.program.first_watched
    was_spoilt = any(row.bad_weights for row in truth.recording.rows if row.step < first)
    return (*fault.accepted, "nonfinite-weights") if was_spoilt else fault.accepted


def _is_placed(finding: dict[str, Any], truth: Truth) -> bool:
    lines = re.findall(rf"\b{re.escape(SCRIPT)}:(\d+)", f"{finding.get('caller') or ''} {finding['cause']}")
    if any(int(line) in truth.program.place_lines for line in lines):
        return True
    bad = _first_bad(truth.recording.rows) if finding["verdict"] == "nonfinite-weights" else []
    named = [finding[kind] for kind in ("module", "tensor") if finding.get(kind)]
    return any(name in bad or (truth.place and is_part(name, truth.place)) for name in named)


def _first_bad(rows: list[Row]) -> list[str]:
    """The tensors that were the first with NaN or Inf."""
    return next((row.bad_weights for row in rows if row.bad_weights), [])


def _wrong(recipe: Recipe, kind: str, truth: Truth, watched: Watched) -> list[str]:
    counts = STYLES[recipe.style].counts_steps and len(watched.reports) == 1
    accepted = fault_of(recipe, kind).accepted
    wrong = []
    for report in watched.reports:
        counts = counts and not _miscounted(report, truth)
        for finding in _statements(report):
            known = truth.of_rank(finding["rank"])
            known = known if kind not in HEALTHY_KINDS and finding["verdict"] in accepted else known.without_place()
            wrong += claims.wrong_statements(finding, known, steps=counts, losses=recipe.style != "accumulation")
    return wrong


def _statements(report: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The findings and their consequences, each with the rank that its numbers are of."""
    for finding in report["findings"]:
        rank = finding.get("rank", 0)
        yield {**finding, "rank": rank}
        yield from ({**consequence, "rank": rank} for consequence in finding.get("consequences") or ())


def _not_judged(report: dict[str, Any]) -> list[str]:
    entries = report.get("not_judged") or (report.get("summary") or {}).get("not_judged") or []
    return [_verdict(entry) for entry in entries]


def _verdict(entry: Any) -> str:
    return str(entry["verdict"] if isinstance(entry, dict) else entry)


def _miscounted(report: dict[str, Any], truth: Truth) -> str:
    """How the steps of a report and of the recording differ; '' if they are the same.

    A program with a scaler of its own may skip a step without a trace: the next one then counts for both.
    """
    steps = (report.get("summary") or {}).get("steps")
    if steps is None or abs(steps - truth.last_step - 1) <= 1:  # a killed program may have completed one more
        return ""
    return f"{steps} steps were counted, and {truth.last_step + 1} recorded"


def _trouble(recipe: Recipe, watched: Watched, truth: Truth) -> str:
    if not watched.reports:
        return f"no report; the program ended with {watched.code}: {watched.output.strip()[-200:]}"
    if (watched.code == 0) != (truth.recording.code == 0):
        return f"ended with {watched.code} instead of {truth.recording.code}: {watched.output.strip()[-200:]}"
    one = STYLES[recipe.style].counts_steps and len(watched.reports) == 1
    return _miscounted(watched.reports[0], truth) if one else ""
