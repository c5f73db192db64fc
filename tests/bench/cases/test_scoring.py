"""Scores: named, half and missed, and the repaired program."""

from __future__ import annotations

from typing import Any

from bench.cases import report
from bench.cases.case import Case
from bench.cases.scoring import HALF, MISSED, NAMED, score
from bench.common.watched import Watched

CASE = Case("a/b#1", "family/b_1.py", "it is wrong", ("right",), (r"unscale_", r"before"))


def finding(verdict: str, text: str = "Call unscale_() before it.") -> dict[str, Any]:
    return {"verdict": verdict, "cause": "", "fix": text}


def watched(*findings: dict[str, Any], code: int = 0) -> Watched:
    return Watched(code, "some output", [{"findings": list(findings)}])


def test_the_first_finding_with_verdict_and_remedy_names_the_case() -> None:
    assert NAMED == score(CASE, watched(finding("right"), finding("other")), watched()).result


def test_a_finding_behind_another_or_without_the_remedy_is_half() -> None:
    assert HALF == score(CASE, watched(finding("other"), finding("right")), watched()).result
    half = score(CASE, watched(finding("right", "Call unscale_().")), watched())
    assert (HALF, ["before"]) == (half.result, half.lacks)


def test_other_findings_are_a_miss() -> None:
    assert MISSED == score(CASE, watched(finding("other")), watched()).result
    assert MISSED == score(CASE, watched(), watched()).result


def test_the_repaired_program_must_not_have_the_finding() -> None:
    result = score(CASE, watched(finding("right")), watched(finding("right"), finding("other")))
    assert (["right"], ["other"]) == (result.alarms, result.also)
    assert 1 == report.counts([(CASE, result)])["false alarms"]
    assert "false alarm" in report.markdown([(CASE, result)], "make cases")


def test_a_program_without_a_report_and_a_repaired_one_that_fails_prove_nothing() -> None:
    assert "no report" in score(CASE, Watched(1, "some output", []), watched()).trouble
    trouble = score(CASE, watched(finding("right")), watched(code=1))
    assert "the repaired program ended with 1" in trouble.trouble
    assert "some output" in report.markdown([(CASE, trouble)], "make cases")


def test_an_expected_verdict_that_ammeter_does_not_have_is_marked() -> None:
    case = Case("a/b#3", "family/b_3.py", "wrong", ("scale-collapse", "not-yet-there"), ("x",))
    text = report.markdown([(case, score(case, watched(), watched()))], "make cases")
    assert "expected scale-collapse or not-yet-there (no such verdict); found nothing" in text


def test_the_table_says_what_is_missing_from_the_text_and_from_the_program() -> None:
    case = Case("a/b#2", "family/b_2.py", "wrong", ("right",), ("never",), limitation="8 GPUs")
    text = report.markdown([(case, score(case, watched(finding("right")), watched()))], "make cases")
    assert "| half | `right` | silent | 8 GPUs |" in text
    assert "The text lacks: `never`" in text
