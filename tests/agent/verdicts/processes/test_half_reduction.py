"""half-reduction: averaged gradients have the bits of a 16-bit dtype on all ranks, although the batches differ."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ammeter.report.diagnosis import diagnose
from ammeter.verdicts.framework.finding import Finding
from ammeter.wire.columns import ABSENT
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings as of_stream
from tests.agent.streams import broken
from tests.agent.verdicts.processes.test_ranks_disagree import Ranks, change_models, judged, seen
from tests.ranks import run as run_on_ranks


def replicas(
    bits: Callable[[int], float] = lambda step: 8.0,
    losses: Sequence[float] = (0.5, 0.6),
    apart: float = 0.0,
    handed: float = float(ABSENT),
) -> Ranks:
    """Ranks that are read at every fourth of 40 steps."""
    made = {rank: Stream(world_size=len(losses)) for rank in range(len(losses))}
    for rank, stream in made.items():
        for step in range(40):
            read = {"weights_checksum": 3.0 + step + apart * rank, "grad_bits": bits(step), "reduce_bits": handed}
            read = read if step % 4 == 0 else {}
            stream.good(loss=losses[rank] + step, norm=1.0 + rank * (apart > 0), **read)
    return made


def sharded(dtype: str = "bfloat16", ranks: int = 384, **more: Any) -> Stream:
    """A rank of a sharded model, whose gradients are reduced in 16 bits."""
    stream = warm(3)
    kind = {"op": "reduce_scatter_tensor", "phase": "backward", "calls": 24, "bytes": 10**9, **more}
    gathered = {**kind, "op": "all_gather_into_tensor", "dtype": "bfloat16", "ranks": 384}
    stream.event("collectives.census", calls=[gathered, {**kind, "dtype": dtype, "ranks": ranks}], sharded=True)
    for _ in range(30):
        stream.good(65536)
    return stream


@broken
def half_reduction() -> Stream:
    return sharded()


def findings(made: Ranks, cuts: Sequence[int] = ()) -> list[Finding]:
    return judged(seen(made, cuts))[1]


@pytest.mark.parametrize(("bits", "dtype"), [(8.0, "bfloat16"), (11.0, "float16")])
def test_rounded_gradients_of_different_batches_are_a_ticket(bits: float, dtype: str) -> None:
    finding = findings(replicas(lambda step: bits if step >= 8 else 24.0))[-1]
    assert ("half-reduction", "ticket", 8, 20) == (
        finding.verdict,
        finding.severity,
        finding.first_step,
        finding.opened_step,
    )
    assert f"Gradients are reduced in {dtype}" == finding.title
    assert f"have {bits:.0f} significant bits instead of 24 since step 8" in finding.cause
    assert "losses of 8.5 to 8.6 at step 8" in finding.cause
    assert (0, 1) == finding.ranks


def test_three_readings_are_not_enough_and_full_bits_close_it() -> None:
    assert [] == findings(replicas(lambda step: 8.0 if step < 12 else 24.0))
    assert not findings(replicas(lambda step: 8.0 if step < 20 else 24.0))[-1].active


def test_ranks_with_equal_batches_are_left_alone() -> None:
    assert [] == findings(replicas(losses=(0.5, 0.5)))


def test_ranks_with_other_weights_are_left_alone() -> None:
    assert "half-reduction" not in {finding.verdict for finding in findings(replicas(apart=1.0))}


@pytest.mark.parametrize("change", ["sharded", "other"])
def test_parts_of_a_model_and_other_models_are_left_alone(change: str) -> None:
    made = replicas()
    change_models(made, change)
    assert [] == findings(made)


@pytest.mark.parametrize("cut", [1, 7, 20])
def test_it_is_the_same_for_every_division_of_the_streams(cut: int) -> None:
    whole, pieces = (judged(seen(replicas(), cuts)) for cuts in ((), range(0, 42, cut)))
    assert (whole[0], whole[1][-1]) == (pieces[0], pieces[1][-1])


def test_the_sum_of_a_sharded_model_has_its_number_of_terms() -> None:
    finding = of_stream(sharded())["half-reduction"]
    assert "Gradients of 384 ranks are summed in bfloat16" == finding.title
    assert "reduce_scatter_tensor over 384 ranks: each sum has 384 terms" in finding.cause
    assert {"dtype": "bfloat16", "terms": 384, "op": "reduce_scatter_tensor"} == finding.evidence


@pytest.mark.parametrize("stream", [sharded("float32"), sharded(ranks=128), sharded(phase="forward")])
def test_a_short_sum_or_one_in_float32_or_of_activations_is_silent(stream: Stream) -> None:
    assert {} == of_stream(stream)


def test_the_terms_are_counted_where_the_ranks_pass_16_bits_to_the_reduction() -> None:
    finding = findings(replicas(handed=8.0))[-1]
    assert "The 2 ranks pass their gradients to all_reduce as bfloat16: each sum has 2 terms" in finding.cause
    assert (2, "bfloat16") == (finding.evidence["terms"], finding.evidence["reduce_dtype"])
    for handed in (24.0, float(ABSENT)):
        assert "terms" not in findings(replicas(handed=handed))[-1].evidence


PROGRAM = """
import sys, torch, ammeter
import torch.distributed as dist

def compress(state, bucket):
    short = bucket.buffer().to(torch.bfloat16)
    return dist.all_reduce(short, async_op=True).get_future().then(lambda reduced: reduced.value()[0].float() / 2)

dist.init_process_group("gloo")
torch.manual_seed(5)
network = torch.nn.Sequential(torch.nn.Linear(24, 48), torch.nn.Tanh(), torch.nn.Linear(48, 24))
model = torch.nn.parallel.DistributedDataParallel(network)
if sys.argv[1] == "compressed":
    model.register_comm_hook(None, compress)
optimizer = torch.optim.RMSprop(network.parameters(), lr=0.001)
ammeter.watch(model, optimizer)
draw = torch.Generator().manual_seed(dist.get_rank())
for step in range(20):
    optimizer.zero_grad()
    inputs = torch.randn(8, 24, generator=draw)
    with torch.autocast("cpu", torch.bfloat16):
        loss = (model(inputs).float() - inputs).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 0.1)
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("how", "expected"), [("compressed", ["half-reduction"]), ("plain", [])])
def test_a_compressing_hook_is_found_behind_a_clip(how: str, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "AMMETER_DIR": str(tmp_path / "runs")}
    run_on_ranks([sys.executable, tmp_path / "program.py", how], 2, env=environment, timeout=120)
    (run,) = (tmp_path / "runs").iterdir()
    assert expected == [entry.finding.verdict for entry in diagnose(run).findings]


def test_the_losses_are_those_of_the_step_that_is_named() -> None:
    """Also while readings of a later episode have begun after the first one is over."""
    finding = findings(replicas(lambda step: 24.0 if step == 20 else 8.0 if step <= 24 else 0.0))[-1]
    assert f"at step {finding.evidence['losses_at_step']})" in finding.cause
    step = finding.evidence["losses_at_step"]
    assert [pytest.approx(0.5 + step), pytest.approx(0.6 + step)] == finding.evidence["losses"]
    assert (0, 24) == (finding.first_step, step)
