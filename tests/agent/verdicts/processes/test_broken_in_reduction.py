"""broken-in-reduction: gradients are finite on all ranks before their sum and not after it, and only then."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ammeter.report.diagnosis import diagnose
from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream
from tests.agent.verdicts.processes.test_ranks_disagree import Ranks, change_models, judged, seen
from tests.ranks import run as run_on_ranks

NAME = "broken-in-reduction"


def replicas(
    local: Sequence[float] = (0, 0),
    reduced: Sequence[float] = (2, 2),
    absmax: float = 3.0,
    bad: range = range(10, 14),
    scale: float | None = None,
    **read: float,
) -> Ranks:
    """Ranks whose gradients are read in steps 10 to 29; those of `bad` are as given."""
    made = {rank: Stream(world_size=2) for rank in range(2)}
    for rank, stream in made.items():
        for step in range(30):
            numbers = {"local_nonfinite": 0.0, "reduced_nonfinite": 0.0, "local_absmax": absmax} if step >= 10 else {}
            if step in bad:
                numbers |= {"local_nonfinite": local[rank], "reduced_nonfinite": reduced[rank], **read}
            stream.good(scale, **numbers)
    return made


def findings(made: Ranks, cuts: Sequence[int] = ()) -> list[Finding]:
    return [finding for finding in judged(seen(made, cuts))[1] if finding.verdict == NAME]


def test_finite_gradients_that_are_not_finite_after_the_reduction_are_a_page() -> None:
    finding = findings(replicas())[0]
    assert ("page", 10, 10, (0, 1)) == (finding.severity, finding.first_step, finding.opened_step, finding.ranks)
    assert "were finite on both ranks, at most 3," in finding.cause
    assert "contain NaN or Inf on both ranks" in finding.cause
    assert finding.fix.startswith("Turn off the overlap")


def test_a_rank_that_alone_receives_nan_is_named() -> None:
    finding = findings(replicas(reduced=(0, 1)))[0]
    assert ((1,), "on rank 1;" in finding.cause) == (finding.ranks, True)


def test_a_rank_with_nan_of_its_own_explains_the_sum() -> None:
    assert [] == findings(replicas(local=(0, 1)))


def buffers(handed: Sequence[float], local: float = 0.0, norm: float = np.nan) -> list[Finding]:
    """Ranks whose gradients and buffers are read at a step; there the gradients have this norm afterwards."""
    made = {rank: Stream(world_size=2) for rank in range(2)}
    for rank, stream in made.items():
        for step in range(20):
            is_read = {"local_nonfinite": 0.0, "local_absmax": 3.0, "handed_nonfinite": 0.0} if step % 4 == 0 else {}
            if step == 12:
                is_read |= {"local_nonfinite": local, "handed_nonfinite": handed[rank], "grad_norm": norm}
            stream.good(None, **is_read)
    return findings(made)


def test_a_buffer_with_nan_that_no_gradient_has_is_a_page() -> None:
    (finding, *_) = buffers((1, 0))
    assert ("page", 12, 12, (0,)) == (finding.severity, finding.first_step, finding.opened_step, finding.ranks)
    assert "Buffers that are reduced have NaN or Inf that no gradient has, at step 12" == finding.title
    assert "the buffers of rank 0 contained NaN or Inf" in finding.cause
    assert "overlap_comm=false" in finding.fix


def test_nan_in_a_buffer_that_comes_from_a_gradient_or_into_none_is_silent() -> None:
    assert [] == buffers((1, 1), local=1.0)
    assert [] == buffers((1, 1), norm=0.5)
    assert [] == buffers((0, 0))


def test_a_sum_and_a_cast_in_float16_have_words_of_their_own() -> None:
    summed = findings(replicas(reduce_bits=11, reduce_absmax=6e4))[0]
    assert "2 numbers of up to 6e+04 can exceed that" in summed.cause
    cast = findings(replicas(reduce_bits=11, reduce_absmax=9.0, absmax=1e5))[0]
    assert "They are cast to float16 for it, which ends at 65504." in cast.cause
    assert summed.fix == cast.fix
    assert summed.fix.startswith("Reduce in float32")


@pytest.mark.parametrize("read", [{"reduce_bits": 11.0, "reduce_absmax": 6e4}, {"absmax": 5e4}])
def test_a_loss_scale_that_may_still_be_too_high_is_left_to_the_scaler(read: dict[str, float]) -> None:
    assert [] == findings(replicas(scale=65536.0, **read))  # type: ignore[arg-type]
    assert findings(replicas(scale=65536.0))


def test_ten_finite_readings_close_it() -> None:
    assert not findings(replicas())[-1].active
    assert findings(replicas(bad=range(10, 22)))[-1].active


@pytest.mark.parametrize("change", ["sharded", "other"])
def test_parts_of_a_model_and_other_models_are_left_alone(change: str) -> None:
    made = replicas()
    change_models(made, change)
    assert [] == findings(made)


@pytest.mark.parametrize("cut", [1, 7, 20])
def test_it_is_the_same_for_every_division_of_the_streams(cut: int) -> None:
    whole, pieces = (judged(seen(replicas(), cuts)) for cuts in ((), range(0, 32, cut)))
    assert (whole[0], whole[1][-1]) == (pieces[0], pieces[1][-1])


PROGRAM = """
import sys, torch, ammeter
import torch.distributed as dist

how, clock = sys.argv[1], [0]

def divide(state, bucket):
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda reduced: reduced.value()[0] / (0 if clock[0] >= 20 and how == "hook" else 2))

dist.init_process_group("gloo")
torch.manual_seed(5)
network = torch.nn.Sequential(torch.nn.Linear(24, 48), torch.nn.Tanh(), torch.nn.Linear(48, 24))
wrapped = torch.nn.parallel.DistributedDataParallel(network) if how in ("hook", "plain", "loss") else network
if how in ("hook", "plain"):
    wrapped.register_comm_hook(None, divide)
optimizer = torch.optim.SGD(network.parameters(), lr=0.001)
scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
ammeter.watch(wrapped, optimizer, scaler)
draw = torch.Generator().manual_seed(dist.get_rank())
for clock[0] in range(40):
    is_bad = clock[0] >= 20
    optimizer.zero_grad()
    inputs = torch.randn(8, 24, generator=draw)
    loss = (wrapped(inputs) - inputs).square().mean()
    if how == "loss" and is_bad and dist.get_rank():
        loss = loss * torch.inf
    scaler.scale(loss).backward()
    if how in ("sum", "later"):
        for weight in network.parameters():
            factor = 2.0**40 if is_bad and how == "sum" else 1.0
            short = (weight.grad * factor).clamp(-6e4, 6e4)
            short = short.half() if how == "sum" else short
            dist.all_reduce(short)
            weight.grad = short.float() / (2 * factor) / (0 if is_bad and how == "later" else 1)
    if how == "buffer":
        flat = torch.cat([weight.grad.flatten() for weight in network.parameters()])
        flat[7] = torch.nan if is_bad else flat[7]
        dist.all_reduce(flat)
        for weight, part in zip(network.parameters(), flat.split([weight.numel() for weight in network.parameters()])):
            weight.grad = part.view_as(weight) / 2
    scaler.step(optimizer)
    scaler.update()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("how", "expected"),
    [("hook", True), ("sum", True), ("buffer", True), ("plain", False), ("loss", False), ("later", False)],
)
def test_real_ranks_are_told_where_it_broke(how: str, expected: bool, tmp_path: Path) -> None:
    """A rank whose own loss is infinite, and a division after the reduction, are not the reduction's fault."""
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "AMMETER_DIR": str(tmp_path / "runs")}
    run_on_ranks([sys.executable, tmp_path / "program.py", how], 2, env=environment, timeout=120)
    (run,) = (tmp_path / "runs").iterdir()
    causes = [entry.finding.verdict for entry in diagnose(run).findings]
    assert expected == (NAME in causes)
    assert (causes == [NAME]) or not expected
