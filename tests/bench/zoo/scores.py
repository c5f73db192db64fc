"""Scores of made-up results."""

from __future__ import annotations

from typing import Any

from bench.zoo import detectors, scoring
from bench.zoo.culprit import Culprit
from bench.zoo.plan import Case
from bench.zoo.report import Results
from bench.zoo.runner import Result, Row
from bench.zoo.scoring import FaultScore, HealthyScore

CASE = Case("scale-collapse", "gpt", "fp16", "adamw", 0, 20)


GUILTY = Culprit(["blocks.1.mlp", "blocks.1.mlp.weight"], [("call_order.py", 30, 40)])


def finding(verdict: str, opened: int = 21, **more: Any) -> dict[str, Any]:
    data = {"verdict": verdict, "severity": "page", "opened_step": opened, "consequences": []}
    return {**data, "tensor": None, "module": None, "caller": None, **more}


def result(*findings: dict[str, Any], case: Case = CASE, **more: Any) -> Result:
    rows = [Row(step, 10**6 * step, step >= 20, ["grad_norm"] if step % 3 == 0 else []) for step in range(60)]
    return Result(**{"case": case, "code": 0, "findings": list(findings), "rows": rows, "culprit": GUILTY, **more})


def score_fault(*findings: dict[str, Any], **more: Any) -> FaultScore:
    twin = Result(CASE.twin, 0, more.pop("twin_findings", []), others=more.pop("twin_alarms", []))
    return scoring.score_fault(result(*findings, **more), twin)


def sound(*tickets: str, pages: tuple[str, ...] = ()) -> HealthyScore:
    return HealthyScore(Case("compiled", precision="bf16"), list(pages), list(tickets), list(detectors.DETECTORS), [])


def results_of(broken: list[FaultScore], healthy: list[HealthyScore]) -> Results:
    return Results(broken, healthy, scoring.limits(broken, healthy), 1.0)


GOOD = [finding("scale-collapse", module="blocks.1.mlp")]
