"""The collectives of a step are counted by operation, dtype, phase and ranks."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from ammeter import journal
from ammeter.wire.frames import Event
from tests.ranks import run as run_on_ranks

PROGRAM = """
import sys, torch, ammeter
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

def compress(state, bucket):
    short = bucket.buffer().to(torch.bfloat16)
    return dist.all_reduce(short, async_op=True).get_future().then(lambda reduced: reduced.value()[0].float() / 2)

dist.init_process_group("gloo")
for way in ("buckets", "hook", "hand", "sharded", "gathered"):
    torch.manual_seed(5)
    network = torch.nn.Linear(24, 24)
    if way == "sharded":
        fully_shard(network, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16))
    model = torch.nn.parallel.DistributedDataParallel(network) if way in ("buckets", "hook") else network
    if way == "hook":
        model.register_comm_hook(None, compress)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.001)
    run = ammeter.watch(model, optimizer, name=way)
    for step in range(6):
        optimizer.zero_grad()
        outputs = model(torch.randn(8, 24))
        if way == "gathered":
            dist.all_gather([torch.empty(8, 24), torch.empty(8, 24)], outputs.detach())
            dist.all_reduce(outputs.detach().sum())
        outputs.square().mean().backward()
        if way == "hand":
            for parameter in network.parameters():
                short = parameter.grad.half()
                dist.all_reduce(short)
                parameter.grad = short.float() / 2
        optimizer.step()
    run.close()
dist.destroy_process_group()
"""

WEIGHTS = 24 * 24 + 24


@pytest.fixture(scope="module")
def census(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Name of a run -> the data of the events of its first rank."""
    folder = tmp_path_factory.mktemp("collectives")
    (folder / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "AMMETER_DIR": str(folder / "runs")}
    run_on_ranks([sys.executable, folder / "program.py"], 2, env=environment, timeout=180)
    found: dict[str, list[dict[str, Any]]] = {}
    for stream in (folder / "runs").glob("*/*"):
        frames = [entry.frame for entry in journal.read(stream)] if stream.is_dir() else []
        events = [frame for frame in frames if isinstance(frame, Event)]
        assert [] == [event.data for event in events if event.name == "probe.failed"]
        if frames and frames[0].rank == 0:  # type: ignore[union-attr]
            data = [event.data for event in events if event.name == "collectives.census"]
            found[frames[0].name] = data  # type: ignore[union-attr]
    return found


def kinds(data: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    names = ("op", "dtype", "phase", "ranks", "bytes")
    return {tuple(call[name] for name in names) for event in data for call in event["calls"]}


def test_buckets_of_ddp_are_described_by_the_parameters(census: dict[str, list[dict[str, Any]]]) -> None:
    assert {("buckets of DDP", "float32", "backward", 2, 4 * WEIGHTS)} == kinds(census["buckets"])
    assert [[]] == [event["hooks"] for event in census["buckets"]]


def test_a_communication_hook_is_named_and_its_calls_are_counted(census: dict[str, list[dict[str, Any]]]) -> None:
    assert {("all_reduce", "bfloat16", "backward", 2, 2 * WEIGHTS)} == kinds(census["hook"])
    assert [["compress"]] == [event["hooks"] for event in census["hook"]]


def test_a_reduction_by_hand_is_counted(census: dict[str, list[dict[str, Any]]]) -> None:
    assert {("all_reduce", "float16", "backward", 2, 2 * WEIGHTS)} == kinds(census["hand"])


def test_a_sharded_model_shows_the_dtype_of_its_reduction(census: dict[str, list[dict[str, Any]]]) -> None:
    reduced = [kind for kind in kinds(census["sharded"]) if kind[0].startswith("reduce_scatter")]
    assert [("bfloat16", "backward", 2)] == [kind[1:4] for kind in reduced]
    assert all(event["sharded"] for event in census["sharded"])


def test_what_the_forward_pass_gathers_has_its_phase_and_single_numbers_are_left_out(
    census: dict[str, list[dict[str, Any]]],
) -> None:
    assert {("all_gather", "float32", "forward", 2, 4 * 8 * 24)} == kinds(census["gathered"])
