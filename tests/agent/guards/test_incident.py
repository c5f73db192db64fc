from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from ammeter import guards
from ammeter.guards.stream_verdicts import StreamVerdicts
from ammeter.report import diagnosis
from ammeter.verdicts.framework.finding import Finding
from tests.agent.guarded import poison, train
from tests.agent.training import stream


def test_the_callback_gets_each_finding_once_in_the_training_thread_with_its_cause_and_fix(tmp_path: Path) -> None:
    got: list[tuple[Finding, int]] = []
    guard = guards.OnIncident(
        lambda finding: got.append((finding, threading.get_ident())), ["nonfinite-weights", "overflow-storm"]
    )
    outcome = train(tmp_path, [guard], before=poison(20))
    ((finding, thread),) = got
    assert threading.get_ident() == thread
    assert ("nonfinite-weights", "page", 20) == (finding.verdict, finding.severity, finding.opened_step)
    (reported,) = [
        finding.finding
        for finding in diagnosis.diagnose(tmp_path / outcome.run).findings
        if finding.finding.verdict == "nonfinite-weights"
    ]
    assert (reported.title, reported.first_step, reported.tensor) == (finding.title, finding.first_step, finding.tensor)
    assert (reported.cause, reported.fix) == (finding.cause, finding.fix)


def test_of_all_verdicts_it_hears_the_cause_and_not_what_comes_of_it(tmp_path: Path) -> None:
    got: list[str] = []
    outcome = train(tmp_path, [guards.OnIncident(lambda finding: got.append(finding.verdict))], before=poison(20))
    assert {finding.finding.verdict for finding in diagnosis.diagnose(tmp_path / outcome.run).findings} == set(got)
    assert len(set(got)) == len(got)


def test_what_the_callback_raises_is_counted_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def raises(finding: Finding) -> None:
        raise ValueError(f"cannot page for {finding.verdict}")

    def before(step: int, net: Any, optimizer: Any, scaler: Any) -> None:
        poison(20)(step, net, optimizer, scaler)

    guard = guards.OnIncident(raises, ["nonfinite-weights", "nonfinite-loss"])
    outcome = train(tmp_path, [guard], before=before)
    assert train(None, before=before).state == outcome.state
    assert guard.failures >= 1
    assert 1 == len([line for line in caplog.messages if "the callback for" in line])
    (action,) = outcome.acted
    assert "callback raised" == action["action"]
    assert action["reason"].startswith("ValueError: cannot page for nonfinite-")


def test_a_healthy_run_calls_nobody(tmp_path: Path) -> None:
    got: list[Finding] = []
    train(tmp_path, [guards.OnIncident(got.append)], steps=60)
    assert [] == got


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_judging_comes_to_the_same_however_the_frames_are_cut(cut: int, tmp_path: Path) -> None:
    outcome = train(tmp_path, before=poison(20))
    frames = stream(outcome.run, tmp_path)[1]
    ids = ("nonfinite-weights", "scale-collapse", "nonfinite-loss")
    judging, opened = StreamVerdicts(ids), []
    for at in range(0, len(frames), cut):
        opened += [finding.verdict for finding in judging.judge(frames[at : at + cut])]
    assert sorted(ids) == sorted(opened)


def test_frames_may_wait_for_company_and_not_for_ever(tmp_path: Path) -> None:
    frames, now = stream(train(tmp_path, before=poison(20)).run, tmp_path)[1], [0.0]
    judging, hurried = (StreamVerdicts(["nonfinite-weights"], 0.1, lambda: now[0]) for _ in range(2))
    assert [] == judging.judge(frames)
    assert 1 == len(hurried.judge(frames, last=True))
    now[0] = 0.2
    assert ["nonfinite-weights"] == [finding.verdict for finding in judging.judge([])]
