"""What the census counts: FLOPs, casts, attention, and the reasons of fallbacks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.flop_counter import FlopCounterMode

import ammeter
from ammeter.probes.kernels import census
from ammeter.probes.kernels.census import Census
from ammeter.wire.columns import measured
from tests.agent.networks import NETWORKS, attention, convolutions, custom, normal, train
from tests.agent.probes.kernels.networks import fallbacks, linear, of
from tests.agent.training import events, stream


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("seed", [0, 1])
def test_flops_are_those_that_torch_counts(name: str, seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    network = NETWORKS[name]()
    network.model.train()
    with torch.autocast("cpu", torch.bfloat16), FlopCounterMode(display=False) as counter:
        network.model(*network.args, **network.kwargs)
    recorded = train(NETWORKS[name], tmp_path, seed=seed)
    assert [counter.get_total_flops()] == [data["flops_eligible"] for data in recorded.of("kernels.census")]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [8, 16, 64])
def test_a_model_below_autocast_runs_wholly_in_low_precision(width: int, dtype: torch.dtype, tmp_path: Path) -> None:
    recorded = train(of(linear(width, 2 * width, 8), width), tmp_path, dtype=dtype)
    (census,) = recorded.of("kernels.census")
    assert 2 * 8 * (width * 2 * width + 2 * width * 8) == census["flops_eligible"] == census["flops_low"]
    assert 1.0 == census["share"]
    assert [] == fallbacks(recorded)
    weights = 2 * (width * 2 * width + 2 * width + 2 * width * 8 + 8)
    assert (weights + 2 * 8 * width, 0) == (census["cast_bytes"], census["recast_bytes"])
    assert 1.0 == float(recorded.rows.scalar("low_precision_share")[1])
    assert census["cast_bytes"] == float(recorded.rows.scalar("cast_bytes")[1])


def test_a_run_without_autocast_has_nothing_to_fall_back_from(tmp_path: Path) -> None:
    recorded = train(normal, tmp_path, dtype=None)
    assert [] == recorded.of("kernels.census") + recorded.of("kernel.fallback")
    assert not measured(recorded.rows.scalar("low_precision_share")).any()


def test_a_region_without_autocast_and_a_function_of_ones_own_are_named(tmp_path: Path) -> None:
    recorded = train(custom, tmp_path)
    assert [("mm", "", "custom-function"), ("addmm", "outside", "autocast-disabled")] == fallbacks(recorded)[:2]
    own, outside, *_ = recorded.of("kernel.fallback")
    assert ["networks.py", "networks.py"] == [data["caller"].split("/")[-1].split(":")[0] for data in (own, outside)]
    assert ("float32", "(4, 16) x (16, 16)") == (outside["dtype"], outside["shape"])
    eligible = 2 * 4 * (4 * 16 * 16 + 16 * 3)
    assert 2 * 4 * 16 * 16 / eligible == outside["flops_share"] == own["flops_share"]
    (census,) = recorded.of("kernels.census")
    assert 2 * 4 * (2 * 16 * 16 + 16 * 3) == census["flops_low"]


class Partly(torch.nn.Module):
    """Autocast is on in one half only, and opened by the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            x = self.first(x)
        return self.last(x.float())  # type: ignore[no-any-return]


def test_autocast_that_the_model_opens_itself_is_followed(tmp_path: Path) -> None:
    recorded = train(of(Partly()), tmp_path, dtype=None)
    assert [("addmm", "last", "autocast-disabled")] == fallbacks(recorded)
    assert 0.5 == recorded.of("kernels.census")[0]["share"]


def test_layers_that_are_named_alike_are_told_once_with_their_number(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(12, 12)) for _ in range(5)))
    recorded = train(of(model, 12), tmp_path)
    (found,) = recorded.of("kernel.fallback")
    assert ("misaligned", 5, 1.0) == (found["reason"], found["modules"], found["flops_share"])
    assert "(8, 12) x (12, 12)" == found["shape"]


@pytest.mark.parametrize(("outputs", "reasons"), [(16, []), (10, ["misaligned"])])
def test_sizes_that_are_no_multiple_of_eight_are_named(outputs: int, reasons: list[str], tmp_path: Path) -> None:
    recorded = train(of(linear(8, outputs)), tmp_path)
    assert reasons == [reason for _, _, reason in fallbacks(recorded)]


def test_the_channels_of_an_image_are_named(tmp_path: Path) -> None:
    assert [("convolution", "stem.0", "misaligned")] == fallbacks(train(convolutions, tmp_path))


def test_attention_that_is_written_out_is_named(tmp_path: Path) -> None:
    recorded = train(attention, tmp_path)
    assert ("bmm", "blocks.0", "sdpa-math") == fallbacks(recorded)[0]
    assert ["math"] == recorded.of("kernels.census")[0]["attention"]


class Heads(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(2, 4, 3, 8).permute(2, 0, 1, 3)[:, :, None]
        return torch.nn.functional.scaled_dot_product_attention(q, k, v).reshape(8, 8)


def test_the_backend_of_attention_is_seen_and_its_flops_count(tmp_path: Path) -> None:
    recorded = train(of(Heads()), tmp_path)
    (census,) = recorded.of("kernels.census")
    assert (["flash"], 1.0) == (census["attention"], census["share"])
    assert 2 * 8 * 8 * 24 + 2 * 2 * 2 * 4 * 4 * 8 == census["flops_eligible"]


class Flexible(torch.nn.Module):
    """A higher-order operator, which a mode has to know of, or it raises."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.qkv(x).float()
        q, k, v = x.detach().view(2, 4, 3, 16).permute(2, 0, 1, 3)[:, :, None]
        found = flex_attention(q, k, v)
        assert isinstance(found, torch.Tensor)
        return found.reshape(8, 16) + x[:, :16]


@pytest.mark.filterwarnings("ignore")
def test_a_higher_order_operator_passes(tmp_path: Path) -> None:
    recorded = train(of(Flexible(), 16), tmp_path)
    (census,) = recorded.of("kernels.census")
    assert ["flex"] == census["attention"]
    assert 2 * 8 * 16 * 48 + 2 * 2 * 2 * 4 * 4 * 16 == census["flops_eligible"]


class Recasting(torch.nn.Module):
    """Casts its weight three times, because autocast's cache is off, its context ends, or the weight is frozen."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why
        self.layer = torch.nn.Linear(8, 8, bias=False)
        self.frozen = [torch.nn.Parameter(torch.eye(8), requires_grad=False)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=self.why != "off"):
            for _ in range(3):
                x = torch.nn.functional.linear(x, self.frozen[0]) if self.why == "frozen" else self.layer(x)
                if self.why == "cleared":
                    torch.clear_autocast_cache()
            return self.layer(x) if self.why == "frozen" else x


@pytest.mark.parametrize("why", ["off", "frozen", "cleared"])
def test_weights_that_are_cast_again_are_counted_by_the_reason(why: str, tmp_path: Path) -> None:
    (census,) = train(of(Recasting(why)), tmp_path, dtype=None).of("kernels.census")
    recast = 2 * 2 * 8 * 8
    assert recast == census["recast_bytes"]
    assert recast * (why == "off") == census["uncached_bytes"]
    assert recast * (why == "frozen") == census["frozen_bytes"]


def test_a_pass_of_very_many_operators_is_counted_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Many(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(200):
                x = self.layer(x)
            return x

    monkeypatch.setattr(census, "MAX_SECONDS", 0.002)
    model = Many()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run = ammeter.watch(model, optimizer, dir=tmp_path, preset="full")
    for _ in range(30):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    run.close()
    data = events(stream(run.id, tmp_path)[1], "kernels.census")[0].data
    assert data["whole"] is False
    assert 0 < data["flops_eligible"] < 200 * 2 * 4 * 8 * 8


def test_a_machine_that_stands_still_for_a_moment_does_not_end_the_census(monkeypatch: pytest.MonkeyPatch) -> None:
    looking, counted = Census(), Census._count

    def stalled(*words: Any) -> None:
        if not looking.work:
            time.sleep(2 * census.MAX_SECONDS)
        counted(*words)

    monkeypatch.setattr(Census, "_count", stalled)
    first, second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 16)
    with looking:
        second(first(torch.ones(2, 8)))
    assert looking.is_complete
    assert 2 * 2 * (8 * 8 + 8 * 16) == census.summary([looking]).eligible
