"""Ranks that train together are the same with and without us, to the last bit, and add up to one run."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ammeter import journal
from ammeter.report.diagnosis import diagnose
from ammeter.wire.columns import View, measured
from ammeter.wire.frames import Event, Hello
from ammeter.wire.ranks import merged
from tests import ranks
from tests.agent import programs
from tests.agent.distributed_plans import PLANS, Plan
from tests.agent.distributed_ranks import BAD_STEP, STEPS, run_id
from tests.agent.stream_judgement import views

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
WORLDS = {"two": 2, "four": 4}
EVERY = [(world, plan) for world, plans in PLANS.items() for plan in plans]
SCALED = [(world, plan) for world, plan in EVERY if plan.scaler]
NAMES = [f"{world} ranks, {plan.name}" for world, plan in EVERY]


@dataclass(frozen=True)
class Launched:
    """Ranks that have ended. results: what each of them wrote."""

    folder: Path
    results: list[dict[str, Any]]

    def streams(self, name: str) -> dict[int, list[Any]]:
        """rank -> frames, of the run of this name; one stream for each rank."""
        return by_rank(self.folder / "runs" / str(run_id(name)))

    def views(self, name: str) -> dict[int, list[View]]:
        return {rank: views(frames) for rank, frames in self.streams(name).items()}

    def events(self, name: str, event: str) -> list[list[dict[str, Any]]]:
        """By rank, the data of these events."""
        return [
            [frame.data for frame in frames if isinstance(frame, Event) and frame.name == event]
            for _, frames in sorted(self.streams(name).items())
        ]


def by_rank(run: Path) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for stream in journal.streams(run):
        frames = [entry.frame for entry in journal.read(stream)]
        (rank,) = {frame.rank for frame in frames if isinstance(frame, Hello)}
        assert rank not in found
        found[rank] = frames
    return found


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """world -> its ranks, started when they are asked for first."""

    @cache
    def launch(world: str) -> Launched:
        folder = tmp_path_factory.mktemp(world)
        environment = {**ranks.without_settings(), "AMMETER_DIR": str(folder / "runs"), "TORCH_FR_BUFFER_SIZE": "20000"}
        command = [sys.executable, "-m", "tests.agent.distributed_ranks", str(folder), world]
        ranks.run(command, WORLDS[world], cwd=ROOT, env=environment, timeout=150)
        return Launched(folder, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLDS[world])])

    return launch


@pytest.mark.parametrize(("world", "plan"), EVERY, ids=NAMES)
def test_what_ranks_come_to_is_the_same_to_the_last_bit(launched: Any, world: str, plan: Plan) -> None:
    for result in launched(world).results:
        bare, watched = result[plan.name]["bare"], result[plan.name]["watched"]
        for what in ("state", "losses", "scales"):
            assert bare[what] == watched[what]
        assert repr(bare["clips"]) == repr(watched["clips"])
        assert (BAD_STEP in skipped(bare["scales"])) is (plan.scaler is not None)


def skipped(scales: Sequence[float | None]) -> list[int]:
    """Steps behind which the scale was lower."""
    return [at for at in range(1, len(scales)) if (scales[at] or 0) < (scales[at - 1] or 0)]


@pytest.mark.parametrize(("world", "plan"), EVERY, ids=NAMES)
def test_nothing_is_sent_between_ranks_because_we_watch(launched: Any, world: str, plan: Plan) -> None:
    for result in launched(world).results:
        assert len(result[plan.name]["bare"]["collectives"]) >= STEPS
        assert result[plan.name]["bare"]["collectives"] == result[plan.name]["watched"]["collectives"]


@pytest.mark.parametrize(("world", "plan"), EVERY, ids=NAMES)
def test_each_rank_writes_one_stream_and_none_of_our_probes_fails(launched: Any, world: str, plan: Plan) -> None:
    streams = launched(world).streams(plan.name)
    count = WORLDS[world]
    assert list(range(count)) == sorted(streams)
    for frames in streams.values():
        assert {count} == {frame.world_size for frame in frames if isinstance(frame, Hello)}
        assert list(range(STEPS)) == programs.steps(frames)
        emitted = [frame.name for frame in frames if isinstance(frame, Event)]
        assert [] == [name for name in emitted if name == "probe.failed" or name.startswith("usage.")]


@pytest.mark.parametrize(("world", "plan"), EVERY, ids=NAMES)
def test_ranks_that_train_together_agree(launched: Any, world: str, plan: Plan) -> None:
    report = diagnose(launched(world).folder / "runs" / str(run_id(plan.name)))
    assert "ranks-disagree" in [verdict.id for verdict in report.evaluated]
    assert "ranks-disagree" not in [reported.finding.verdict for reported in report.findings]


@pytest.mark.parametrize(("world", "plan"), SCALED, ids=[f"{world} ranks, {plan.name}" for world, plan in SCALED])
def test_a_step_that_one_rank_breaks_is_skipped_by_all_and_their_columns_agree(
    launched: Any, world: str, plan: Plan
) -> None:
    for rows in launched(world).views(plan.name).values():
        assert [float(step == BAD_STEP) for step in range(STEPS)] == column(rows, "skipped")
        assert [float(step == BAD_STEP) for step in range(STEPS)] == column(rows, "found_inf")
        assert [float(step != BAD_STEP) for step in range(STEPS)] == column(rows, "applied")
        assert [1024.0, 1024.0, 2048.0, 2048.0, 1024.0, 1024.0] == column(rows, "scale")
        assert [False] == np.isfinite(column(rows, "grad_norm")[BAD_STEP : BAD_STEP + 1]).tolist()


def column(rows: Sequence[View], name: str) -> list[float]:
    return [float(value) for view in rows for value in view.scalar(name)]


WHOLE = [(world, plan) for world, plan in EVERY if plan.precision == "fp32"]


@pytest.mark.parametrize(("world", "plan"), WHOLE, ids=[f"{world} ranks, {plan.name}" for world, plan in WHOLE])
def test_merged_norms_are_those_of_the_model_in_one_piece(launched: Any, world: str, plan: Plan) -> None:
    whole = launched(world).results[0][plan.name]["whole"]
    found = list(merged(launched(world).views(plan.name), WORLDS[world]))
    first = found[0]
    norms = dict(
        zip([tensor.name for tensor in first.schema.tensors], first.stat("grad.norm")[:, 0].tolist(), strict=True)
    )
    assert whole == pytest.approx(norms, rel=1e-5)
    total = sum(norm**2 for norm in whole.values()) ** 0.5
    assert total == pytest.approx(float(first.scalar("grad_norm")[0]), rel=1e-5)


CLIPPED = [(world, plan) for world, plan in EVERY if plan.clip and plan.preset == "full" and plan.name != "first fsdp"]


@pytest.mark.parametrize(("world", "plan"), CLIPPED, ids=[f"{world} ranks, {plan.name}" for world, plan in CLIPPED])
def test_merged_norms_are_what_clip_grad_norm_returns(launched: Any, world: str, plan: Plan) -> None:
    returned = launched(world).results[0][plan.name]["watched"]["clips"]
    found = column(list(merged(launched(world).views(plan.name), WORLDS[world])), "grad_norm")
    assert returned == pytest.approx(found, rel=1e-5, nan_ok=True)


def test_the_gradients_of_ddp_are_the_same_on_all_ranks(launched: Any) -> None:
    first, second = (column(rows, "grad_norm") for _, rows in sorted(launched("two").views("ddp fp32").items()))
    assert first == second


def test_a_rank_reads_its_own_shard_without_the_others(launched: Any) -> None:
    first, second = launched("two").views("fsdp fp32")[0], launched("two").views("fsdp fp32")[1]
    assert column(first, "grad_norm") != column(second, "grad_norm")
    shapes = {tensor.name: (tensor.shape, tensor.copies) for tensor in second[-1].schema.tensors}
    assert (((10, 12), 1), ((1,), 1)) == (shapes["first.weight"], shapes["last.bias"])


def test_a_shard_without_rows_is_no_fault(launched: Any) -> None:
    rows = launched("four").views("fsdp fp32")[3]
    names = [tensor.name for tensor in rows[-1].schema.tensors]
    empty = rows[-1].schema.tensors[names.index("last.weight")]
    assert ((0, 21), 0) == (empty.shape, empty.numel)
    norms = rows[-1].stat("grad.norm")
    assert (False, True) == (
        bool(measured(norms[names.index("last.weight")]).any()),
        bool(measured(norms[names.index("first.weight")]).all()),
    )


def test_copies_are_those_of_the_whole_mesh(launched: Any) -> None:
    copies = {
        name: {tensor.name: tensor.copies for tensor in launched("four").views(name)[0][-1].schema.tensors}
        for name in ("fsdp fp32", "hybrid", "tensor parallel", "fsdp across tensor parallel")
    }
    assert {1} == set(copies["fsdp fp32"].values())
    assert {2} == set(copies["hybrid"].values())
    tensors = ("first.weight", "middle.weight", "middle.bias", "norm.weight")
    assert [1, 1, 4, 0] == [copies["tensor parallel"][name] for name in tensors]
    assert [1, 1, 2, 2] == [copies["fsdp across tensor parallel"][name] for name in tensors]


def test_under_ddp_a_bad_step_is_replayed_where_it_was_born_and_under_fsdp_that_is_reported_as_impossible(
    launched: Any,
) -> None:
    innocent, guilty = launched("two").events("ddp fp16", "origin.found")
    assert ([], [("forward", "loss")]) == (innocent, [(operator["kind"], operator["op"]) for operator in guilty])
    emitted = launched("two").events("fsdp fp16", "origin.unknown")
    assert [["replay: sharded"], ["replay: sharded"]] == [[event["reason"] for event in rank] for rank in emitted]


@pytest.mark.parametrize("world", WORLDS)
def test_ranks_agree_on_their_run_without_a_setting(launched: Any, world: str) -> None:
    (run,) = {result["agreed"] for result in launched(world).results}
    assert list(range(WORLDS[world])) == sorted(by_rank(launched(world).folder / "runs" / run))


@pytest.mark.parametrize("world", WORLDS)
def test_before_init_process_group_the_launchers_job_is_the_run_else_each_rank_is_one_which_is_logged_once(
    launched: Any, world: str
) -> None:
    alone, named = zip(*((result["early"][:2], result["early"][2:]) for result in launched(world).results), strict=True)
    assert 2 * WORLDS[world] == len({run for runs in alone for run in runs})
    assert 1 == len({run for runs in named for run in runs})
    logged = [result["logged"] for result in launched(world).results]
    assert [1, *[0] * (WORLDS[world] - 1)] == [len(lines) for lines in logged]
    assert f"so the {WORLDS[world]} ranks are recorded as separate runs; call watch() afterwards" in logged[0][0]


@pytest.mark.parametrize("world", WORLDS)
def test_a_rank_that_is_not_watched_keeps_nobody_waiting(launched: Any, world: str) -> None:
    assert [rank for rank in range(WORLDS[world]) if rank != 1] == sorted(launched(world).streams("one is off"))


@pytest.mark.parametrize("world", WORLDS)
def test_ranks_that_wait_in_join_are_the_same_and_write_their_own_steps(launched: Any, world: str) -> None:
    for result in launched(world).results:
        assert result["uneven"][0] == result["uneven"][1]
    streams = launched(world).streams("uneven")
    assert [2 + rank for rank in range(WORLDS[world])] == [
        len(programs.steps(streams[rank])) for rank in range(WORLDS[world])
    ]


@pytest.mark.parametrize("world", WORLDS)
def test_a_wrapper_that_the_program_let_go_is_gone_before_the_process_group(launched: Any, world: str) -> None:
    assert [[False, False]] * WORLDS[world] == [result["left"] for result in launched(world).results]


@pytest.mark.parametrize("world", WORLDS)
def test_a_run_may_end_behind_destroy_process_group_or_with_the_program(launched: Any, world: str) -> None:
    for name, reason in (("closed behind", "closed"), ("never closed", "exit")):
        for frames in launched(world).streams(name).values():
            ends = [(reason, words) for words in ("", "its optimizers are gone, and another run begins")]
            assert [0] == programs.steps(frames)
            assert programs.bye(frames) in ends
