from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import ammeter
from ammeter.probes.kernels import census, probe
from ammeter.probes.kernels.census import Census
from ammeter.recording.budget import PRESETS, UNLIMITED_SHARE
from ammeter.wire.columns import measured
from tests.agent.networks import NETWORKS, Network, attention, convolutions, custom, normal, train
from tests.agent.training import events, stream


def linear(*widths: int, **options: Any) -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Linear(*pair, **options) for pair in pairwise(widths)))


def of(model: torch.nn.Module, width: int = 8, *, rows: int = 8) -> Callable[[], Network]:
    return lambda: Network(model, (torch.randn(rows, width),), {}, "0")


def fallbacks(told: Any) -> list[tuple[str, str, str]]:
    return [(data["op"], data["module"], data["reason"]) for data in told.of("kernel.fallback")]


@pytest.mark.parametrize("preset", ["default", "full"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, None])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_run_with_windows_ends_in_the_same_bits(name: str, dtype: Any, preset: str, tmp_path: Path) -> None:
    bare = train(NETWORKS[name], None, dtype=dtype)
    watched = train(NETWORKS[name], tmp_path, dtype=dtype, preset=preset)
    assert repr(bare.state) == repr(watched.state)
    assert measured(watched.rows.scalar("cast_bytes")).any()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("seed", [0, 1])
def test_flops_are_those_that_torch_counts(name: str, seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    network = NETWORKS[name]()
    network.model.train()
    with torch.autocast("cpu", torch.bfloat16), FlopCounterMode(display=False) as counter:
        network.model(*network.args, **network.kwargs)
    told = train(NETWORKS[name], tmp_path, seed=seed)
    assert [counter.get_total_flops()] == [data["flops_eligible"] for data in told.of("kernels.census")]


@pytest.mark.parametrize("name", NETWORKS)
def test_with_the_preset_full_backward_is_counted_too(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name]()
    network.model.train()
    with torch.autocast("cpu", torch.bfloat16):
        loss = network.loss()
    with FlopCounterMode(display=False) as counter:
        loss.backward()  # type: ignore[no-untyped-call]
    told = train(NETWORKS[name], tmp_path, preset="full")
    assert [("forward", True), ("backward", counter.get_total_flops())] == [
        (data["phase"], data["phase"] == "forward" or data["flops_eligible"]) for data in told.of("kernels.census")
    ]


class Unback(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        raise FloatingPointError("no way back")


def test_a_window_is_closed_when_backward_raises(tmp_path: Path) -> None:
    model = linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ammeter.watch(model, optimizer, dir=tmp_path, preset="full")
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 8)).sum()
        if step < 2:
            loss.backward()
        else:
            with pytest.raises(FloatingPointError):
                Unback.apply(loss).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        assert 0 == torch._C._len_torch_dispatch_stack()
    run.close()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [8, 16, 64])
def test_a_model_below_autocast_runs_wholly_in_low_precision(width: int, dtype: torch.dtype, tmp_path: Path) -> None:
    told = train(of(linear(width, 2 * width, 8), width), tmp_path, dtype=dtype)
    (census,) = told.of("kernels.census")
    assert 2 * 8 * (width * 2 * width + 2 * width * 8) == census["flops_eligible"] == census["flops_low"]
    assert 1.0 == census["share"]
    assert [] == fallbacks(told)
    weights = 2 * (width * 2 * width + 2 * width + 2 * width * 8 + 8)
    assert (weights + 2 * 8 * width, 0) == (census["cast_bytes"], census["recast_bytes"])
    assert 1.0 == float(told.rows.scalar("low_precision_share")[1])
    assert census["cast_bytes"] == float(told.rows.scalar("cast_bytes")[1])


def test_a_run_without_autocast_has_nothing_to_fall_back_from(tmp_path: Path) -> None:
    told = train(normal, tmp_path, dtype=None)
    assert [] == told.of("kernels.census") + told.of("kernel.fallback")
    assert not measured(told.rows.scalar("low_precision_share")).any()


def test_a_region_without_autocast_and_a_function_of_ones_own_are_named(tmp_path: Path) -> None:
    told = train(custom, tmp_path)
    assert [("mm", "", "custom-function"), ("addmm", "outside", "autocast-disabled")] == fallbacks(told)[:2]
    own, outside, *_ = told.of("kernel.fallback")
    assert ["networks.py", "networks.py"] == [each["caller"].split("/")[-1].split(":")[0] for each in (own, outside)]
    assert ("float32", "(4, 16) x (16, 16)") == (outside["dtype"], outside["shape"])
    eligible = 2 * 4 * (4 * 16 * 16 + 16 * 3)
    assert 2 * 4 * 16 * 16 / eligible == outside["flops_share"] == own["flops_share"]
    (census,) = told.of("kernels.census")
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
    told = train(of(Partly()), tmp_path, dtype=None)
    assert [("addmm", "last", "autocast-disabled")] == fallbacks(told)
    assert 0.5 == told.of("kernels.census")[0]["share"]


def test_layers_that_are_named_alike_are_told_once_with_their_number(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(12, 12)) for _ in range(5)))
    told = train(of(model, 12), tmp_path)
    (found,) = told.of("kernel.fallback")
    assert ("misaligned", 5, 1.0) == (found["reason"], found["modules"], found["flops_share"])
    assert "(8, 12) x (12, 12)" == found["shape"]


@pytest.mark.parametrize(("outputs", "reasons"), [(16, []), (10, ["misaligned"])])
def test_sizes_that_are_no_multiple_of_eight_are_named(outputs: int, reasons: list[str], tmp_path: Path) -> None:
    told = train(of(linear(8, outputs)), tmp_path)
    assert reasons == [reason for _, _, reason in fallbacks(told)]


def test_the_channels_of_an_image_are_named(tmp_path: Path) -> None:
    assert [("convolution", "stem.0", "misaligned")] == fallbacks(train(convolutions, tmp_path))


def test_attention_that_is_written_out_is_named(tmp_path: Path) -> None:
    told = train(attention, tmp_path)
    assert ("bmm", "blocks.0", "sdpa-math") == fallbacks(told)[0]
    assert ["math"] == told.of("kernels.census")[0]["attention"]


class Heads(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(2, 4, 3, 8).permute(2, 0, 1, 3)[:, :, None]
        return torch.nn.functional.scaled_dot_product_attention(q, k, v).reshape(8, 8)


def test_the_backend_of_attention_is_seen_and_its_flops_count(tmp_path: Path) -> None:
    told = train(of(Heads()), tmp_path)
    (census,) = told.of("kernels.census")
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
    told = train(of(Flexible(), 16), tmp_path)
    (census,) = told.of("kernels.census")
    assert ["flex"] == census["attention"]
    assert 2 * 8 * 16 * 48 + 2 * 2 * 2 * 4 * 4 * 16 == census["flops_eligible"]


class Recasting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
                x = self.layer(x)
        return x


def test_weights_that_are_cast_again_are_counted(tmp_path: Path) -> None:
    (census,) = train(of(Recasting()), tmp_path, dtype=None).of("kernels.census")
    assert 2 * 2 * 8 * 8 == census["recast_bytes"]
    assert 3 * 2 * 8 * 8 + 2 * 8 * 8 == census["cast_bytes"]


class Switched(torch.nn.Module):
    """Autocast can be switched off for the second half."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.low = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            return self.last(x.float())  # type: ignore[no-any-return]


def test_a_census_is_told_again_when_the_share_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        PRESETS, "full", lambda budget: (UNLIMITED_SHARE, UNLIMITED_SHARE, UNLIMITED_SHARE, UNLIMITED_SHARE)
    )

    def before(step: int, network: Network) -> None:
        network.model.low = step < 4  # type: ignore[assignment]

    told = train(of(Switched()), tmp_path, before=before, dtype=torch.bfloat16, preset="full")
    assert [(1, 1.0), (4, 0.5)] == [
        (step, data["share"])
        for step, event, data in told.events
        if event == "kernels.census" and data["phase"] == "forward"
    ]
    assert [("addmm", "last", "autocast-disabled")] == fallbacks(told)


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def _steps(model: torch.nn.Module, folder: Path, *, step: Callable[[Any], None] | None = None) -> Any:
    """Six steps of a watched model; step does one of them its own way. Returns the frames."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ammeter.watch(model, optimizer, dir=folder)

    def forward_and_back() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(8, 8)).float().sum()
        loss.backward()

    try:
        for _ in range(6):
            optimizer.zero_grad()
            step(forward_and_back) if step else forward_and_back()
            optimizer.step()
    finally:
        run.close()
    _, frames = stream(run.id, folder)
    events = [(each.name, each.data) for each in frames if type(each).__name__ == "Event"]
    assert [] == [each for each in events if each[0] == "probe.failed"]
    return events


def test_beside_a_mode_or_a_profiler_of_the_program_no_window_is_opened(tmp_path: Path) -> None:
    def counted(forward: Callable[[], None]) -> None:
        with Counting():
            forward()

    def profiled(forward: Callable[[], None]) -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            forward()

    for number, step in enumerate((counted, profiled)):
        told = _steps(linear(8, 8), tmp_path / str(number), step=step)
        assert [("kernels.blind", {"reason": "busy"})] == [each for each in told if each[0].startswith("kernel")]


@pytest.mark.filterwarnings("ignore")
def test_of_a_compiled_model_it_is_told_that_it_cannot_be_counted(tmp_path: Path) -> None:
    torch._dynamo.reset()
    told = _steps(cast(torch.nn.Module, torch.compile(linear(8, 8), backend="eager")), tmp_path)
    torch._dynamo.reset()
    assert [("kernels.blind", {"reason": "compiled"})] == [each for each in told if each[0].startswith("kernel")]


@pytest.mark.filterwarnings("ignore")
@torch._dynamo.config.patch(error_on_recompile=True)  # type: ignore[untyped-decorator]
def test_a_compiled_part_of_a_model_stays_compiled_in_a_window(tmp_path: Path) -> None:
    torch._dynamo.reset()
    ran: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        ran.append(0)
        return graph.forward

    part = cast(torch.nn.Module, torch.compile(linear(8, 8), backend=backend))
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), part)
    told = _steps(model, tmp_path)
    torch._dynamo.reset()
    assert [0] == ran
    assert "kernels.census" in [event for event, _ in told]


class Raising(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.raises = torch.nn.Linear(8, 8), True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        if self.raises:
            raise FloatingPointError("out of range")
        return x


def test_a_window_is_closed_when_the_model_raises(tmp_path: Path) -> None:
    model = Raising()
    kinds: list[int] = []

    def step(forward: Callable[[], None]) -> None:
        if len(kinds) == 3:
            model.raises = False
        try:
            forward()
        except FloatingPointError:
            model.layer(torch.ones(1, 8)).sum().backward()
        kinds.append(torch._C._len_torch_dispatch_stack() + len(model.layer._forward_hooks))

    _steps(model, tmp_path, step=step)
    assert [0] * 6 == kinds


def test_what_goes_wrong_in_a_count_does_not_reach_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(self: Census, *_: Any) -> None:
        raise ValueError("counted wrong")

    monkeypatch.setattr(Census, "_count_cast", wrong)
    with pytest.raises(AssertionError):  # the loop looks for faults
        train(normal, tmp_path)
    assert "its kernels probe failed and is switched off (ValueError: counted wrong" in caplog.text
    assert 0 == torch._C._len_torch_dispatch_stack()


def test_a_window_is_closed_when_the_probe_has_a_fault_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: probe.Kernels, *_: Any) -> None:
        raise ValueError("entered wrong")

    monkeypatch.setattr(probe.Kernels, "_entered", wrong)
    model = linear(8, 8)
    with pytest.raises(AssertionError):  # the loop looks for faults
        _steps(model, tmp_path)
    assert 0 == torch._C._len_torch_dispatch_stack()
    assert [0, 0] == [len(each._forward_hooks) for each in model.modules()]


def test_windows_are_bought_from_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    original = probe.Kernels._open

    def counted(self: probe.Kernels, model: torch.nn.Module) -> None:
        opened.append(0)
        original(self, model)

    monkeypatch.setattr(probe.Kernels, "_open", counted)
    train(normal, tmp_path / "poor", steps=200, budget=0.001)
    poor = len(opened)
    opened.clear()
    train(normal, tmp_path / "light", steps=200, preset="light")
    assert 0 == len(opened)
    train(normal, tmp_path / "rich", steps=200, budget=1.0)
    assert 0 < poor < len(opened)


def test_fallbacks_that_are_told_are_bounded(tmp_path: Path) -> None:
    model = torch.nn.Sequential()
    for number in range(30):
        model.add_module(f"layer_{chr(97 + number % 26)}{number}x", torch.nn.Linear(9, 9))
    told = train(of(model, 9), tmp_path)
    assert probe.MAX_FALLBACKS == len(told.of("kernel.fallback"))


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
    told = events(stream(run.id, tmp_path)[1], "kernels.census")[0].data
    assert told["whole"] is False
    assert 0 < told["flops_eligible"] < 200 * 2 * 4 * 8 * 8


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
    assert 2 * 2 * (8 * 8 + 8 * 16) == census.summary(looking, region=False).eligible
