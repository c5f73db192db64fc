"""The benchmark of kill -9 compares the steps that a program noted with those at the collector."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from bench.agent.kills import __main__ as kills
from bench.agent.kills import worker
from bench.agent.kills.__main__ import Outcome
from bench.agent.kills.worker import NOTED_SECONDS, Notes
from bench.collector import servers

SAME = Outcome(
    begun=8, completed=8, shown=8, counted=9, is_complete=True, was_fast=True, step_seconds=[0.002] * 9, seconds=0.5
)
INSIDE_THE_CALL = replace(SAME, begun=9)
BEFORE_THE_NOTE = replace(SAME, begun=9, shown=9, counted=10)


def test_the_last_step_of_a_killed_program_is_compared_with_the_collector(tmp_path: Path) -> None:
    server = servers.collector(tmp_path)
    try:
        outcome = kills.kill_one(server, tmp_path, "fp16", layers=1, seconds=0.2)
        kills.wait_for_shippers(tmp_path)
    finally:
        server.stop()
    assert outcome.is_same or outcome.is_next
    assert 0 <= outcome.completed <= outcome.begun
    assert outcome.completed <= len(outcome.step_seconds) + 1


@pytest.mark.parametrize(
    ("expected", "outcome"),
    [
        ((True, False), SAME),
        ((True, False), INSIDE_THE_CALL),
        ((False, True), BEFORE_THE_NOTE),
        ((False, False), replace(SAME, shown=7, counted=8)),
        ((False, False), replace(SAME, shown=9, counted=10)),
        ((False, False), replace(SAME, counted=8)),
        ((False, False), replace(SAME, is_complete=False)),
        ((False, False), replace(SAME, shown=-1, counted=0)),
    ],
    ids=[
        *("same step", "killed inside the call", "killed before the note", "a step is missing"),
        *("a step that did not begin", "a hole", "not lost", "no run"),
    ],
)
def test_the_step_at_the_collector_is_the_completed_one_or_the_begun_one(
    expected: tuple[bool, bool], outcome: Outcome
) -> None:
    assert expected == (outcome.is_same, outcome.is_next)


def test_the_table_counts_and_the_conclusion_names_each_wrong_kill() -> None:
    missing = replace(SAME, shown=5, counted=6)
    row = kills.row("bf16", [SAME, BEFORE_THE_NOTE, missing])
    assert ("bf16", "3", "2.00 / 2.00 / 2.00", "9 to 9", "3", "1", "1", "1", "0.5, 0.5") == row
    conclusion = kills.conclusion_of([SAME, BEFORE_THE_NOTE, missing])
    assert "after 2 of 3 kills" in conclusion
    assert "Completed 8, begun 8, at the collector 5 of 6 counted." in conclusion


def test_notes_are_read_through_another_mapping_of_their_file() -> None:
    file = os.memfd_create("notes")
    try:
        written, read = Notes(file), Notes(file)
        assert (-1, -1, False, []) == (read.begun, read.completed, read.is_fast, read.step_seconds())
        for step in range(NOTED_SECONDS + 1):
            written.begin(step)
            written.complete(step)
            written.describe(step, 0.5 + step, is_fast=True)
        assert (NOTED_SECONDS, NOTED_SECONDS, True) == (read.begun, read.completed, read.is_fast)
        assert {NOTED_SECONDS + 0.5, *(0.5 + step for step in range(1, NOTED_SECONDS))} == set(read.step_seconds())
    finally:
        os.close(file)


def test_the_depth_grows_with_the_wanted_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_seconds_per_step", lambda precision, layers: 0.0005 + 0.0001 * layers)
    assert [15, 55, 1] == [worker.layers_for("bf16", seconds) for seconds in (0.002, 0.006, 0.0001)]


def test_a_quick_run_does_not_replace_the_committed_results(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        kills.main(["--quick", "--write"])
    assert "--quick measures too little" in capsys.readouterr().err
