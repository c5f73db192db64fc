"""The first census records in which order the modules of the model ran, as an order of the tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import fsdp

import ammeter
from ammeter.probes.kernels import forward_order
from tests.agent.networks import Network, train
from tests.agent.training import events, stream

Module = torch.nn.Module
Linear = torch.nn.Linear


class Backwards(Module):
    """Registers its parts in the opposite order of their calls."""

    def __init__(self) -> None:
        super().__init__()
        self.head = Linear(8, 8)
        self.body = torch.nn.ModuleList([Linear(8, 8) for _ in range(3)])
        self.embed = Linear(8, 8)
        self.shift = torch.nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x) + self.shift
        for part in reversed(self.body):
            x = part(x)
        output: torch.Tensor = self.head(x)
        return output


class Interleaved(Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.ModuleList([Linear(8, 8, bias=False) for _ in range(2)])
        self.mlp = torch.nn.ModuleList([Linear(8, 8, bias=False) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for attention, mlp in zip(self.attention, self.mlp, strict=True):
            x = mlp(attention(x))
        return x


class Around(Module):
    """Its attention uses the weights of a part that never runs by itself, and the last line those of another one."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = Linear(8, 8, bias=False)
        self.last = Linear(8, 8, bias=False)
        self.attention = torch.nn.MultiheadAttention(8, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.last(self.attention(x, x, x)[0])
        return output + self.unused.weight.sum()


class Tied(Module):
    """The weight has the name of the part that was registered first and runs last."""

    def __init__(self) -> None:
        super().__init__()
        self.head = Linear(8, 8, bias=False)
        self.body = Linear(8, 8, bias=False)
        self.embed = Linear(8, 8, bias=False)
        self.embed.weight = self.head.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.body(self.embed(x)))
        return output


def ordered(model: Module, folder: Path, **options: Any) -> list[list[str]]:
    """The names of the tensors in each order that is recorded."""
    recorded = train(lambda: Network(model, (torch.randn(4, 8),), {}, "0"), folder, steps=5, **options)
    names = [name for name, _ in model.named_parameters()]
    orders = []
    for data in recorded.of("tensors.ordered"):
        pairs = zip(data["order"][::2], data["order"][1::2], strict=True)
        orders.append([names[index] for first, count in pairs for index in range(first, first + count)])
    return orders


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Backwards, "shift embed.weight embed.bias body.2.weight body.2.bias body.1.weight body.1.bias body.0.weight"
         " body.0.bias head.weight head.bias"),
        (Interleaved, "attention.0.weight mlp.0.weight attention.1.weight mlp.1.weight"),
        (Around, "attention.in_proj_weight attention.out_proj.weight last.weight unused.weight"),
        (Tied, "head.weight body.weight"),
    ],
)  # fmt: skip
def test_tensors_are_in_the_order_in_which_their_modules_first_run(
    model: type[Module], expected: str, tmp_path: Path
) -> None:
    assert [expected.split()] == ordered(model(), tmp_path)


def test_an_order_is_packed_as_runs_of_neighbours(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(Linear(8, 8) for _ in range(20)))
    recorded = train(lambda: Network(model, (torch.randn(4, 8),), {}, "0"), tmp_path, steps=5)
    assert [{"order": [0, 40]}] == recorded.of("tensors.ordered")


def test_an_order_of_too_many_numbers_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_order, "MAX_NUMBERS", 4)
    assert [] == ordered(Backwards(), tmp_path)


def test_ten_thousand_tensors_in_the_worst_order_have_a_small_event() -> None:
    order = forward_order.ForwardOrder()
    names = [f"part{number}.weight" for number in range(10_000)]
    order.add([f"part{number}" for number in (*range(0, 10_000, 2), *range(9_999, 0, -2))], [])
    event = order.event(names, [])
    assert event is not None
    assert 19_998 == len(event["order"])
    assert [0, 1, 2, 1, 4, 1] == event["order"][:6]


@pytest.mark.filterwarnings("ignore")
def test_of_a_compiled_model_no_order_is_recorded(tmp_path: Path) -> None:
    torch._dynamo.reset()
    model: Any = torch.compile(Backwards(), backend="eager")
    assert [] == ordered(model, tmp_path)


def test_where_no_census_is_taken_no_order_is_recorded(tmp_path: Path) -> None:
    assert [] == ordered(Backwards(), tmp_path, preset="light")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["fully_shard", "FullyShardedDataParallel", "DistributedDataParallel"])
def test_a_wrapper_for_several_ranks_hides_no_order(way: str, tmp_path: Path) -> None:
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model: Any = Backwards()
        if way == "fully_shard":
            fsdp.fully_shard(model.body[1])
            fsdp.fully_shard(model)
        elif way == "FullyShardedDataParallel":
            model = fsdp.FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
        else:
            model = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        run = ammeter.watch(model, optimizer, dir=tmp_path)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
        run.close()
    finally:
        torch.distributed.destroy_process_group()
    _, frames = stream(run.id, tmp_path)
    assert [{"order": [0, 1, 9, 2, 7, 2, 5, 2, 3, 2, 1, 2]}] == [
        event.data for event in events(frames, "tensors.ordered")
    ]
