"""Scores: found, named, located, in time, and noticed by detectors."""

from __future__ import annotations

from typing import Any

import pytest

from bench.zoo.detectors import ANOMALY, CAUSE, LOSS, NAN, NORM, PART, TORCH, Alarm
from bench.zoo.plan import Case
from tests.bench.zoo.scores import finding, score_fault


def test_a_fault_is_named_when_its_verdict_is_the_first_finding() -> None:
    found = score_fault(finding("scale-collapse"), finding("lost-updates"))
    assert (True, True, ["lost-updates"]) == (found.detected, found.right, found.beside)
    found = score_fault(finding("lost-updates"), finding("scale-collapse"))
    assert (True, False, "lost-updates") == (found.detected, found.right, found.first)
    found = score_fault()
    assert (False, False, "", None) == (found.detected, found.right, found.first, found.after)


def test_a_finding_that_the_twin_has_too_does_not_count() -> None:
    assert not score_fault(finding("lost-updates"), twin_findings=[finding("lost-updates")]).detected


@pytest.mark.parametrize(
    ("named", "right"),
    [
        ({"module": "blocks.1.mlp"}, True),
        ({"tensor": "blocks.1.mlp.weight", "module": "blocks.1"}, True),
        ({"module": "blocks.1.mlp.fc"}, False),
        ({"caller": "trainer/call_order.py:30"}, True),
        ({"caller": "trainer/call_order.py:41"}, False),
        ({"caller": "trainer/train.py:35"}, False),
        ({}, False),
    ],
)
def test_the_culprit_is_a_broken_part_or_a_line_of_the_code_that_breaks_it(named: dict[str, Any], right: bool) -> None:
    assert right == score_fault(finding("scale-collapse", **named)).culprit


def test_a_fault_without_a_part_or_line_has_no_culprit() -> None:
    assert score_fault(case=Case("overflow-storm", "gpt", "fp16", "adamw")).culprit is None


def test_the_delay_counts_from_the_first_symptom_in_steps_or_in_readings() -> None:
    found = score_fault(finding("scale-collapse", opened=24))
    assert (4, 5, "steps", True) == (found.after, found.limit, found.unit, found.in_time)
    assert pytest.approx(0.005) == found.seconds
    assert not score_fault(finding("scale-collapse", opened=26)).in_time
    spike = Case("gradient-spike", "gpt", "bf16", "adamw", 0, 20)
    found = score_fault(finding("gradient-spike", opened=33), case=spike)
    assert (5, 4, "grad_norm", False) == (found.after, found.limit, found.unit, found.in_time)
    storm = Case("overflow-storm", "gpt", "fp16", "adamw")  # its first skipped step is the 20th
    assert 13 == score_fault(finding("overflow-storm", opened=33), case=storm).after


def test_detectors_notice_what_they_do_not_report_of_the_twin() -> None:
    said = [Alarm(NAN, 25), Alarm(LOSS, 12), Alarm(NORM, 30)]
    assert {NAN: [], NORM: []} == score_fault(others=said).others
    assert {NAN: []} == score_fault(others=said, twin_alarms=[Alarm(NORM, 40)]).others
    before_the_onset = [Alarm(NORM, 10)]
    assert {NAN: [], NORM: []} == score_fault(others=said, twin_alarms=before_the_onset).others
    assert ANOMALY not in score_fault(others=said).looked


def test_detectors_name_what_their_messages_contain() -> None:
    trace = 'File "/somewhere/trainer/call_order.py", line 35, in forward'
    assert {ANOMALY: [PART]} == score_fault(anomaly=[Alarm(ANOMALY, 20, trace)]).others
    assert {ANOMALY: []} == score_fault(anomaly=[Alarm(ANOMALY, 20, trace.replace("35", "45"))]).others
    early = Case("scheduler-ahead", "gpt", "fp16", "adamw", 0, 20)
    warning = "UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`."
    assert {TORCH: [CAUSE]} == score_fault(case=early, others=[Alarm(TORCH, 20, warning)]).others
    assert {TORCH: []} == score_fault(others=[Alarm(TORCH, 20, warning)]).others
