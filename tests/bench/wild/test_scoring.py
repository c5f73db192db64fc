"""Scores of made-up reports about a real program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.wild import scoring
from bench.wild.oracle import Recording, Row
from bench.wild.processes import Watched
from bench.wild.program import assemble
from bench.wild.recipe import Recipe
from bench.wild.scoring import Score
from bench.wild.truth import Truth

RECIPE = Recipe.parse("nonfinite-gradient/sqrt/late/script/mlp/sgd/fp32/run/200ms/1")
PROGRAM = assemble(RECIPE, "fault")
assert PROGRAM is not None
NAMES = [PROGRAM.place_module, f"{PROGRAM.place_module}.weight", "elsewhere"]
ROWS = [Row(step, 1.0, 1.0, str(step), "", bad_gradients=["a"] * (step >= 20)) for step in range(50)]
TRUTH = Truth(PROGRAM, Recording(ROWS, 0, ["d"], "", NAMES), 20, PROGRAM.place_module)


def finding(verdict: str = "nonfinite-gradient", opened: int = 21, **more: Any) -> dict[str, Any]:
    given = {"verdict": verdict, "severity": "page", "first_step": 20, "opened_step": opened, "cause": "", **more}
    return {"consequences": [], **given}


def score(*findings: dict[str, Any], kind: str = "fault", digest: str = "d", **report: Any) -> Score:
    watched = Watched(0, [digest], "", [{"findings": list(findings), **report}])
    return scoring.score(RECIPE, kind, TRUTH, watched)


def test_the_right_verdict_and_module_are_named_and_placed() -> None:
    result = score(finding(module=PROGRAM.place_module if PROGRAM else ""))
    assert (True, True, True, []) == (result.noticed, result.named, result.placed, result.wrong)
    assert result.unchanged
    assert not result.missed


def test_a_consequence_is_noticed_and_not_named() -> None:
    result = score(finding("nonfinite-weights"))
    assert (True, False, False) == (result.noticed, result.named, result.placed)
    assert result.missed


def test_a_right_verdict_behind_another_one_is_noticed_and_not_named() -> None:
    result = score(finding("fp32-fallback"), finding())
    assert (True, False) == (result.noticed, result.named)


def test_a_verdict_before_the_fault_notices_nothing() -> None:
    result = score(finding(opened=19, first_step=19))
    assert not result.noticed
    assert ["nonfinite-gradient: began at step 19, but the first different number is that of step 20"] == result.wrong


def test_a_line_of_the_fault_is_a_place_and_another_one_is_not() -> None:
    lines = sorted(TRUTH.program.place_lines)
    assert score(finding(caller=f"train.py:{lines[0]}")).placed
    assert False is score(finding(caller="train.py:1")).placed


def test_a_wrong_module_is_a_wrong_statement() -> None:
    result = score(finding(module="elsewhere"))
    assert False is result.placed
    assert 1 == len(result.wrong)


def test_a_healthy_program_has_alarms_by_severity() -> None:
    result = score(finding(first_step=30), finding("lost-updates", severity="ticket", first_step=30), kind="twin")
    assert (["nonfinite-gradient"], ["lost-updates"]) == (result.pages, result.tickets)
    assert not result.noticed


def test_other_weights_and_a_missing_report_are_seen() -> None:
    assert False is score(digest="e").unchanged
    silent = scoring.score(RECIPE, "fault", TRUTH, Watched(1, [], "Oh", []))
    assert None is silent.unchanged
    assert "no report; the program ended with 1: Oh" == silent.trouble


def test_verdicts_that_were_not_judged_are_kept() -> None:
    assert ["lost-updates"] == score(not_judged=[{"verdict": "lost-updates"}]).not_judged


def test_weights_that_were_spoilt_before_they_were_watched_are_named_as_such() -> None:
    def named(bad_from: int) -> bool:
        rows = [Row(step, 1.0, 1.0, str(step), "", bad_weights=["a"] * (step >= bad_from)) for step in range(50)]
        program = replace(TRUTH.program, first_watched=9)
        truth = Truth(program, Recording(rows, 0, ["d"], "", NAMES), bad_from, PROGRAM.place_module)  # type: ignore[union-attr]
        found = finding("nonfinite-weights", opened=12, first_step=12)
        return scoring.score(RECIPE, "fault", truth, Watched(0, ["d"], "", [{"findings": [found]}])).named

    assert named(4)
    assert not named(12)
