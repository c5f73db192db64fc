from __future__ import annotations

from typing import Any

import pytest

from ammeter_server.runs.checkpoints import CheckpointEvent, last_good, resume_command

WHOLE = {"weights": {"float32": 10}}


def saved(step: int, path: str, **data: Any) -> CheckpointEvent:
    return CheckpointEvent("checkpoint.saved", step, step, {"path": path, "contents": WHOLE, "missing": []} | data)


def verified(step: int, path: str, outcome: str) -> CheckpointEvent:
    return CheckpointEvent("checkpoint.verified", step, step, {"path": path, "outcome": outcome})


def test_the_newest_checkpoint_before_the_fault_is_the_last_good_one() -> None:
    found = last_good([saved(50, "c"), saved(30, "b"), saved(10, "a")], 40)
    assert found is not None
    assert ("b", 30) == (found.path, found.step)


def test_a_checkpoint_of_the_first_bad_step_is_not_good() -> None:
    assert last_good([saved(40, "a")], 40) is None


def test_a_path_that_was_written_again_since_is_not_good() -> None:
    found = last_good([saved(50, "last"), saved(30, "last"), saved(10, "a")], 40)
    assert found is not None
    assert "a" == found.path


@pytest.mark.parametrize(("outcome", "path", "is_verified"), [("passed", "b", True), ("failed", "a", False)])
def test_a_checkpoint_that_was_read_back_is_judged_by_that(outcome: str, path: str, is_verified: bool) -> None:
    found = last_good([verified(31, "b", outcome), saved(30, "b"), saved(10, "a")], 40)
    assert found is not None
    assert (path, is_verified) == (found.path, found.verified)


def test_a_file_without_weights_or_path_is_no_checkpoint() -> None:
    assert last_good([saved(30, "b", contents={}), saved(20, "")], 40) is None


@pytest.mark.parametrize(
    ("command", "resumed"),
    [
        ("python t.py --resume old.pt --lr 1", "python t.py --resume '/c k/1.pt' --lr 1"),
        ("python t.py --ckpt_path=old.pt", "python t.py '--ckpt_path=/c k/1.pt'"),
        ("python t.py --resume", None),
        ("python t.py --resume --lr 1", None),
        ("python t.py", None),
        ("python 't.py", None),
        (None, None),
    ],
)
def test_the_command_of_a_resume_is_the_runs_own_with_the_checkpoint(command: str | None, resumed: str | None) -> None:
    assert resumed == resume_command(command, "/c k/1.pt")
