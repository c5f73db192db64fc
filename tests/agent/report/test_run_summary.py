"""Ranks, shards and lives of a run are told as one run."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ammeter.__main__ import main
from ammeter.journal import Journal
from ammeter.wire.frames import Hello, Tensor
from tests.agent.stream_builder import SECOND, Stream

RUN = "5b0c6f0e-93a5-5c59-9b5f-0f5a3f1f7d11"
SHARDS = [Tensor("a", (2, 3), "float32", 1), Tensor("b", (2,), "float32", 1)]


def written(stream: Stream, folder: Path, rank: int, began: int = 1) -> None:
    """The stream in the run's folder; began: in seconds."""
    writer = Journal(folder / RUN / uuid.uuid4().hex)
    for frame in stream.frames:
        if isinstance(frame, Hello):
            frame = msgspec.structs.replace(
                frame, run=RUN, stream=writer.folder.name, rank=rank, started=began * SECOND
            )
            writer.hello(frame)
        else:
            writer.append(frame)
    writer.close()


def stream(began: int = 1, tensors: Sequence[Tensor] = SHARDS) -> Stream:
    made = Stream(tensors, world_size=2)
    made.now = began * SECOND
    return made


def report(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any, str]:
    """(exit code, JSON, text)."""
    code = main(["report", str(folder)])
    text = " ".join(capsys.readouterr().out.split())
    main(["report", str(folder), "--json"])
    return code, json.loads(capsys.readouterr().out), text


def reading(norms: Sequence[float], began: int = 1, tensors: Sequence[Tensor] = SHARDS) -> Stream:
    made = stream(began, tensors)
    for norm in norms:
        made.step(seconds=1, loss=2.0, applied=1, skipped=0, grad_norm=norm, stats={"grad.norm": [norm, 0.0]})
    return made


def test_the_gradient_norm_of_a_sharded_run_is_that_of_all_shards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(reading([3, 6, 30]).bye(), tmp_path, 0)
    written(reading([4, 8, 40]).bye(), tmp_path, 1)
    _, document, text = report(tmp_path, capsys)
    reached = {"first": 5.0, "last": 50.0, "lowest": 5.0, "highest": 50.0, "last_step": 2, "read": 3}
    assert reached == document["summary"]["grad_norm"]
    assert "run" == document["summary"]["grad_norm_of"]
    assert "gradient norm 5 at first, 50 at last, lowest 5, highest 50" in text


def test_where_a_shard_is_missing_the_norm_is_said_to_be_one_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(reading([3, 6]).bye(), tmp_path, 1)
    _, document, text = report(tmp_path, capsys)
    assert (3.0, "rank 1") == (document["summary"]["grad_norm"]["first"], document["summary"]["grad_norm_of"])
    assert "gradient norm of rank 1 3 at first, 6 at last" in text


def test_without_shards_the_norm_of_the_first_rank_is_that_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [Tensor("a", (2, 3), "float32"), Tensor("b", (2,), "float32")]
    for rank in range(2):
        written(reading([3, 6], tensors=whole).bye(), tmp_path, rank)
    _, document, text = report(tmp_path, capsys)
    assert (3.0, "run") == (document["summary"]["grad_norm"]["first"], document["summary"]["grad_norm_of"])
    assert "gradient norm 3 at first, 6 at last" in text


def restarted(folder: Path, recorded: int = 3) -> None:
    """Rank 1 dies, rank 0 is ended for it, and both come again; the second life's shards have other norms."""
    first = reading([3, 6])
    first.now = recorded * SECOND
    written(first.bye("signal", "SIGTERM"), folder, 0)
    written(reading([4]).bye("lost", "killed by SIGKILL"), folder, 1)
    written(reading([30, 9, 60], began=100).bye("exit"), folder, 0, began=100)
    written(reading([40, 12, 80], began=101).bye("exit"), folder, 1, began=101)


def test_a_run_that_was_started_again_is_one_run_and_the_rank_that_died_is_no_loss_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    restarted(tmp_path)
    code, document, text = report(tmp_path, capsys)
    assert (0, []) == (code, document["findings"])
    assert ("ended", "exit", 2) == tuple(document["run"][name] for name in ("state", "goodbye", "last_step"))
    assert (2, 2) == (document["run"]["world_size"], document["run"]["ranks_reporting"])
    assert "2, because the ranks were restarted; one ended at step 1 (lost: killed by SIGKILL)" in text


def test_an_end_that_is_recorded_after_the_restart_is_no_loss_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    restarted(tmp_path, recorded=103)
    code, document, _ = report(tmp_path, capsys)
    assert (0, []) == (code, document["findings"])


def test_lives_add_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    restarted(tmp_path)
    _, document, _ = report(tmp_path, capsys)
    assert (5, 5) == (document["summary"]["steps"], document["summary"]["applied"])
    reached = {"first": 5.0, "last": 100.0, "lowest": 5.0, "highest": 100.0, "last_step": 2, "read": 4}
    assert reached == document["summary"]["grad_norm"]
    assert 5.0 == document["summary"]["seconds"]
    lives = [(life["last_step"], life["state"], life["goodbye"]) for life in document["run"]["lives"]]
    assert [(1, "lost", "lost: killed by SIGKILL"), (2, "ended", "exit")] == lives


def test_the_last_lifes_death_is_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(reading([3]).bye("signal"), tmp_path, 0)
    written(reading([4]).bye("lost"), tmp_path, 1)
    written(reading([3], began=100).bye("exit"), tmp_path, 0, began=100)
    written(reading([4], began=100).bye("lost"), tmp_path, 1, began=100)
    code, document, _ = report(tmp_path, capsys)
    assert (3, ["run-lost"]) == (code, [finding["verdict"] for finding in document["findings"]])
    assert ([1], "lost") == (document["findings"][0]["ranks"], document["run"]["state"])


def test_a_process_that_ran_beside_another_of_its_rank_was_not_replaced_by_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(reading([3] * 20).bye("lost"), tmp_path, 0)
    written(reading([4], began=5).bye("exit"), tmp_path, 0, began=5)
    code, document, text = report(tmp_path, capsys)
    assert (3, ["run-lost"], []) == (
        code,
        [finding["verdict"] for finding in document["findings"]],
        document["run"]["lives"],
    )
    assert "restarted" not in text
