"""Guards of several ranks do the same on each of them: they never talk to each other, and must not part."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ammeter import journal
from ammeter.wire.frames import Event, Hello
from tests import ranks
from tests.agent.guarded_ranks import LOUD, STEPS

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks left."""
    made = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "tests.agent.guarded_ranks", str(made)]
    ranks.run(command, 2, cwd=ROOT, env=ranks.without_settings(), timeout=200)
    return made


def told(folder: Path, how: str) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{rank}.json").read_text())[how] for rank in (0, 1)]


def actions(folder: Path, how: str) -> dict[int, list[tuple[str, str, int]]]:
    """rank -> what guards did there."""
    found: dict[int, list[tuple[str, str, int]]] = {}
    for run in {data["run"] for data in told(folder, how)}:
        for stream in journal.streams(folder / how / run):
            frames = [entry.frame for entry in journal.read(stream)]
            (rank,) = {frame.rank for frame in frames if isinstance(frame, Hello)}
            acted = [frame.data for frame in frames if isinstance(frame, Event) and frame.name == "guard.acted"]
            found[rank] = [(data["guard"], data["action"], data["step"]) for data in acted]
    return found


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_both_ranks_have_the_same_scale_in_every_step(how: str, folder: Path) -> None:
    first, second = told(folder, how)
    assert first["scales"] == second["scales"]
    skips = sum(after < before for before, after in zip(first["scales"], first["scales"][1:LOUD], strict=False))
    assert skips <= 6


def test_under_ddp_both_have_the_same_weights_to_the_last_bit(folder: Path) -> None:
    first, second = told(folder, "ddp")
    assert first["bits"] == second["bits"]


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_both_leave_float16_in_the_same_step_although_one_alone_overflows(how: str, folder: Path) -> None:
    fell = {
        rank: [step for guard, action, step in entries if action == "fell back"]
        for rank, entries in actions(folder, how).items()
    }
    assert {0: [LOUD + 2], 1: [LOUD + 2]} == fell
    assert [True] * 4 == [rank_data[name] for rank_data in told(folder, how) for name in ("finite", "loss")]


def test_the_first_rank_writes_what_is_whole_on_it_and_says_that_a_shard_is_not(folder: Path) -> None:
    whole, sharded = (
        {
            rank: [action for guard, action, _ in entries if guard == "checkpoint"]
            for rank, entries in actions(folder, how).items()
        }
        for how in ("ddp", "fsdp")
    )
    assert {0: ["wrote"] * (STEPS // 10 - 1), 1: []} == whole
    assert {0: ["did not write"], 1: []} == sharded
