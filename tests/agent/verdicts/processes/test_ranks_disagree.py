"""ranks-disagree fires where scalers of one model decide alone, says who began, and leaves other ranks be."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ammeter import verdicts
from ammeter.report.diagnosis import diagnose
from ammeter.verdicts.framework.finding import Finding
from ammeter.verdicts.framework.rank_alignment import AlignedSteps, Standing, align_steps
from ammeter.wire.frames import Hello, Schema, Tensor
from tests.agent.stream_builder import SECOND, TENSORS, Stream
from tests.agent.stream_judgement import views
from tests.ranks import run as run_on_ranks

Ranks = dict[int, Stream]


def ranks(count: int = 2, steps: int = 10, norms: Sequence[float] = (), first: Sequence[int] = ()) -> Ranks:
    """Ranks that share their gradients, or with norms of their own; first: good steps that a scaler has behind it."""
    made = {rank: Stream(world_size=count) for rank in range(count)}
    for rank, stream in made.items():
        for step in range(steps):
            tracker = step + (first[rank] if first else 0)
            stream.good(65536.0, norm=norms[rank] if norms else 1 + step % 3, growth_tracker=tracker)
    return made


def go_on(made: Ranks, steps: int, *scales: float, norm: float = 1.0) -> Ranks:
    for stream, scale in zip(made.values(), scales, strict=True):
        for step in range(steps):
            stream.good(scale, norm=norm, growth_tracker=step)
    return made


def skip_alone(made: Ranks, rank: int, **more: Any) -> Ranks:
    for number, stream in made.items():
        if number == rank:
            stream.bad(65536.0, inf=True, growth_tracker=10, **more)
        else:
            stream.good(65536.0, growth_tracker=10)
    return made


def change_models(made: Ranks, change: str) -> None:
    """Gives the ranks parts of a `sharded` model, or `other` models."""
    for rank, stream in made.items():
        copies = change == "sharded"
        others = "encoder." if rank and not copies else ""
        tensors = tuple(Tensor(others + tensor.name, tensor.shape, tensor.dtype, int(copies)) for tensor in TENSORS)
        schema = Schema(stream.schema.scalars, stream.schema.stats, tensors)
        stream.frames[0] = Hello("run", "stream", schema)


def seen(made: Ranks, cuts: Sequence[int] = (), over: Sequence[int] = ()) -> list[AlignedSteps]:
    return list(align_steps({rank: views(stream.frames, cuts) for rank, stream in made.items()}, over))


def judged(looks: Sequence[AlignedSteps]) -> tuple[dict[str, bytes], list[Finding]]:
    states: dict[str, bytes] = {}
    told: list[Finding] = []
    for look in looks:
        answer = verdicts.judge_ranks(states, look)
        assert {} == answer.faults
        states = answer.states
        told += answer.findings
    return states, told


def last(made: Ranks) -> Finding:
    return judged(seen(made))[1][-1]


def test_a_rank_that_skips_alone_is_named_with_its_loss_and_both_scales() -> None:
    finding = last(go_on(skip_alone(ranks(4), 2, loss=np.nan), 3, 65536.0, 65536.0, 32768.0, 65536.0))
    assert ("page", 10, 13, (2,)) == (finding.severity, finding.first_step, finding.opened_step, finding.ranks)
    assert "Rank 2 skipped step 10 and the other ranks applied it" == finding.title
    assert "Step 10 was skipped on rank 2 and applied on the other ranks" in finding.cause
    assert "32768 (2^15) against 65536 (2^16)" in finding.cause
    assert "In that step, the loss of rank 2 was not finite: examine that batch." in finding.cause
    assert finding.fix.startswith("Call the DistributedDataParallel wrapper")
    assert "from before step 10 on all ranks" in finding.fix


def test_two_steps_of_it_are_not_enough() -> None:
    assert [] == judged(seen(go_on(skip_alone(ranks(), 1), 2, 65536.0, 32768.0)))[1]


def test_of_two_ranks_it_is_the_one_that_skipped() -> None:
    finding = last(go_on(skip_alone(ranks(), 0), 5, 32768.0, 65536.0))
    assert ((0,), 10) == (finding.ranks, finding.evidence["skipped_alone"])
    assert "loss of rank" not in finding.cause


def test_a_scaler_that_only_one_rank_has_loaded_is_told_from_the_first_step_on() -> None:
    made = {rank: Stream(world_size=2) for rank in range(2)}
    for rank, stream in made.items():
        for step in range(20):
            scale = 2048.0 if rank else 65536.0
            stream.good(scale, norm=3.0 * 2048 / scale, growth_tracker=step)
    finding = last(made)
    assert (0, 19) == (finding.first_step, finding.opened_step)
    assert (
        "differs from that of rank 0 from the first compared step on: 2048 (2^11) against 65536 (2^16)" in finding.cause
    )
    assert "scaler.load_state_dict on all ranks" in finding.fix


def parts(steps: int, *scales: float, share: float = 1.0, made: Ranks | None = None, alone: int | None = None) -> Ranks:
    """Ranks whose optimizers have parts of a model, so that their norms differ, and which reduce all gradients."""
    made = made or {rank: Stream(world_size=len(scales)) for rank in range(len(scales))}
    for (rank, stream), scale in zip(made.items(), scales, strict=True):
        for step in range(steps):
            read: dict[str, Any] = {"reduced_share": share} if stream.next_step % 4 == 0 else {}
            if rank == alone:
                stream.bad(scale, inf=True, growth_tracker=step, **read)
            else:
                stream.good(scale, norm=1.0 + 0.7 * rank, growth_tracker=step, **read)
    return made


def test_ranks_of_a_sharded_optimizer_are_coupled_by_the_gradients_that_they_reduce() -> None:
    made = parts(1, 65536.0, 65536.0, made=parts(10, 65536.0, 65536.0), alone=1)
    for scale in (32768.0, 16384.0, 8192.0):  # this rank goes on skipping alone
        parts(1, 65536.0, scale, made=made, alone=1)
    finding = last(made)
    assert ((1,), 10, 13, 10) == (
        finding.ranks,
        finding.first_step,
        finding.opened_step,
        finding.evidence["skipped_alone"],
    )
    assert "does not update the whole model" in finding.cause
    assert "Use torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler" in finding.fix
    assert "weights differ" not in finding.cause + finding.fix


def test_ranks_with_other_norms_that_reduce_a_metric_or_nothing_train_alone() -> None:
    made = parts(1, 65536.0, 65536.0, made=parts(10, 65536.0, 65536.0, share=0.01), alone=1)
    assert [] == judged(seen(parts(30, 65536.0, 32768.0, made=made, share=0.01)))[1]


def test_scales_that_part_after_the_ranks_stopped_reducing_are_fine() -> None:
    made = parts(8, 65536.0, 65536.0, share=0.0, made=parts(8, 65536.0, 65536.0))
    assert [] == judged(seen(parts(8, 65536.0, 32768.0, share=0.0, made=made)))[1]


@pytest.mark.parametrize("cut", [1, 5, 13])
def test_a_sharded_optimizer_is_judged_equally_for_every_division_of_the_streams(cut: int) -> None:
    made = parts(1, 65536.0, 65536.0, made=parts(10, 65536.0, 65536.0), alone=1)
    parts(4, 65536.0, 32768.0, made=made)
    whole, pieces = (judged(seen(made, cuts)) for cuts in ((), range(0, 30, cut)))
    assert (whole[0], whole[1][-1]) == (pieces[0], pieces[1][-1])


def test_steps_that_all_skip_and_scales_that_all_have_are_fine() -> None:
    made = ranks(3)
    for stream in made.values():
        stream.bad(65536.0, inf=True, growth_tracker=10)
    assert [] == judged(seen(go_on(made, 20, 32768.0, 32768.0, 32768.0)))[1]


def test_ranks_that_train_models_of_their_own_are_left_alone() -> None:
    made = ranks(2, norms=(1.0, 1.3))
    assert [] == judged(seen(go_on(skip_alone(made, 1), 20, 65536.0, 32768.0)))[1]


@pytest.mark.parametrize("cut", [3, 50])
def test_ranks_that_no_longer_share_gradients_have_scales_of_their_own(cut: int) -> None:
    made = ranks(2)
    for rank, stream in made.items():
        for step in range(40):
            if rank and step == 10:
                stream.bad(65536.0, inf=True, growth_tracker=10)
            else:
                scale = 32768.0 if rank and step > 10 else 65536.0
                stream.good(scale, norm=1 + 0.3 * rank + step, growth_tracker=step)
    assert [] == judged(seen(made, cuts=range(0, 52, cut)))[1]


def test_ranks_with_shards_of_one_model_need_no_equal_norms() -> None:
    made = ranks(2, norms=(1.0, 1.3))
    change_models(go_on(skip_alone(made, 1), 5, 65536.0, 32768.0), "sharded")
    assert (1,) == last(made).ranks


def test_a_rank_that_was_watched_some_steps_later_only_seems_to_differ() -> None:
    made = ranks(2, first=(0, 7))
    for rank, stream in made.items():
        for step in range(7):
            stream.good(32768.0 if rank else 65536.0, growth_tracker=step)
    assert [] == judged(seen(go_on(made, 30, 32768.0, 32768.0)))[1]


def test_it_is_told_once_and_goes_on_while_they_differ() -> None:
    told = judged(seen(go_on(skip_alone(ranks(), 1), 50, 65536.0, 32768.0)))[1]
    assert {(10, 13, 1)} == {(finding.first_step, finding.opened_step, finding.times) for finding in told}
    assert 60 == told[-1].last_step


@pytest.mark.parametrize("cut", [1, 5, 11, 13])
def test_it_is_the_same_however_the_streams_are_cut(cut: int) -> None:
    made = go_on(skip_alone(ranks(3), 1, loss=np.inf), 9, 65536.0, 32768.0, 65536.0)
    whole, pieces = judged(seen(made)), judged(seen(made, cuts=range(0, 30, cut)))
    assert (whole[0], whole[1][-1]) == (pieces[0], pieces[1][-1])


def test_what_a_rank_has_not_reached_waits_and_one_that_ended_holds_nobody_up() -> None:
    made = ranks(3)
    made[1].frames = made[1].frames[:6]
    assert [4] == [int(aligned.steps[-1]) for aligned in seen(made)][-1:]
    after_the_end = seen(made, over=[1])
    assert ((0, 2), 9) == (after_the_end[-1].ranks, int(after_the_end[-1].steps[-1]))


def test_only_the_steps_behind_those_that_were_judged_are_read_again() -> None:
    looks = list(align_steps({rank: views(stream.frames) for rank, stream in ranks().items()}, (), after=6))
    assert [7, 8, 9] == [step for look in looks for step in look.steps.tolist()]


def standing(rank: int, step: int, seconds: float, may_wait: bool = True) -> Standing:
    return Standing(rank, step, int(seconds * SECOND), may_wait)


def test_a_rank_that_stands_while_the_others_go_on_is_named() -> None:
    shared = judged(seen(ranks(3)))[0]
    where = (standing(0, 500, 400), standing(1, 9, 1), standing(2, 499, 399))
    (finding,) = verdicts.judge_ranks(shared, AlignedSteps(standings=where)).findings
    assert ((1,), 9, 500) == (finding.ranks, finding.first_step, finding.opened_step)
    assert "Rank 1 stopped at step 9 while other ranks continue" == finding.title
    assert "they are up to 491 steps and at least 5 minutes ahead. The 3 ranks shared" in finding.cause
    assert "py-spy dump" in finding.fix


@pytest.mark.parametrize(
    "slow", [standing(1, 450, 1), standing(1, 9, 200), standing(1, 9, 1, may_wait=False)], ids=["near", "new", "ended"]
)
def test_a_rank_that_is_near_or_moved_lately_or_has_ended_does_not_stand(slow: Standing) -> None:
    shared = judged(seen(ranks(2)))[0]
    assert [] == verdicts.judge_ranks(shared, AlignedSteps(standings=(standing(0, 500, 400), slow))).findings


def test_ranks_that_share_no_gradients_may_be_as_far_apart_as_they_like() -> None:
    where = AlignedSteps(standings=(standing(0, 500, 400), standing(1, 9, 1)))
    apart, together = (judged(seen(ranks(2, norms=norms)))[0] for norms in ((1.0, 2.0), (2.0, 2.0)))
    assert [] == verdicts.judge_ranks(apart, where).findings
    assert 1 == len(verdicts.judge_ranks(together, where).findings)


PROGRAM = """
import torch, ammeter
import torch.distributed as distributed
distributed.init_process_group("gloo")
torch.manual_seed(1)
network = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 3), torch.nn.Flatten(), torch.nn.Linear(18, 2))
model = torch.nn.parallel.DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
ammeter.watch(model, optimizer, scaler, budget=1.0)
for step in range(20):
    optimizer.zero_grad()
    scaler.scale(model(torch.randn(4, 2, 8)).square().mean()).backward()
    if step == 8 and distributed.get_rank() == 1:
        network[0].weight.grad[0] = torch.inf
    scaler.step(optimizer)
    scaler.update()
distributed.destroy_process_group()
"""


def test_real_ranks_are_found_where_one_of_them_spoils_what_was_reduced(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "AMMETER_DIR": str(tmp_path / "runs")}
    run_on_ranks([sys.executable, tmp_path / "program.py"], 2, env=environment, timeout=120)
    (run,) = (tmp_path / "runs").iterdir()
    (found,) = diagnose(run).findings
    assert ("ranks-disagree", [1], 8, 11) == (
        found.finding.verdict,
        found.ranks,
        found.finding.first_step,
        found.finding.opened_step,
    )
    assert "512 (2^9) against 1024 (2^10)" in found.finding.cause
