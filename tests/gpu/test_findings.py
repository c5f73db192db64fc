"""What a run on the device tells: the module of a NaN, kernels that fall back, and readings of the device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from ammeter.shipper.nvml import READINGS, Device, DeviceReading, Nvml
from tests.agent.training import Seen, stream, watching

WIDTH = 64


class Attention(torch.nn.Module):
    """Causal attention of four heads by the kernels that it is told to use."""

    def __init__(self, *backends: SDPBackend) -> None:
        super().__init__()
        self.projection = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.backends = list(backends)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.projection(x).chunk(3, -1))
        with sdpa_kernel(self.backends):
            attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return attended.transpose(1, 2).flatten(-2)


class Float32(torch.nn.Module):
    """A layer that leaves autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            result: Tensor = self.layer(x.float())
        return result


class Infinite(torch.nn.Module):
    """Returns Inf from its 20th call on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        result: Tensor = self.layer(x)
        return result * math.inf if self.calls > 20 else result


class Overflowing(torch.nn.Module):
    """Multiplies by a number from its 20th call on, and float16 cannot hold the product."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        result: Tensor = self.layer(x)
        return result * 64.0 * 16384.0 if self.calls > 20 else result


def model(**layers: torch.nn.Module) -> torch.nn.Module:
    named = torch.nn.Sequential()
    for name, layer in {"first": torch.nn.Linear(WIDTH, WIDTH), **layers, "last": torch.nn.Linear(WIDTH, 8)}.items():
        named.add_module(name, layer)
    return named


def trained(
    network: torch.nn.Module, device: str, folder: Path, *, dtype: torch.dtype = torch.bfloat16, steps: int = 40
) -> Seen:
    """What a training of the network under autocast has written; float16 has a GradScaler."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(False)  # attention has kernels without it
    network = network.to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**12, enabled=dtype is torch.float16)
    with watching(folder, network, optimizer, scaler) as seen:
        for _ in range(steps):
            optimizer.zero_grad()
            inputs = torch.randn(4, 16, WIDTH, device=device)
            with torch.autocast(device, dtype):
                loss = functional.cross_entropy(
                    network(inputs).float().flatten(0, 1), torch.arange(64, device=device) % 8
                )
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
    assert [] == [event.data for event in seen.events("probe.failed")]
    return seen


def test_hooks_name_the_module_that_first_returns_inf(device: str, tmp_path: Path) -> None:
    network = model(faulty=Infinite(), after=torch.nn.Linear(WIDTH, WIDTH))
    seen = trained(network, device, tmp_path, dtype=torch.float16)
    by_hooks = [event.data for event in seen.events("origin.found") if event.data["confidence"] == "hooks"]
    assert [("forward", "faulty", "Infinite")] == [(data["kind"], data["module"], data["class"]) for data in by_hooks]
    assert "faulty" in str(seen.findings()["nonfinite-loss"])


def test_the_operator_that_overflows_runs_again_and_its_numbers_are_named(device: str, tmp_path: Path) -> None:
    seen = trained(model(faulty=Overflowing()), device, tmp_path, dtype=torch.float16)
    found = [event.data for event in seen.events("origin.found")]
    tried = [(data["op"], data["trial"]) for data in found if "trial" in data]
    assert [("MulBackward0", "range")] == tried[:1], found
    assert "nonfinite-loss" in seen.findings()


def test_a_layer_that_leaves_autocast_and_attention_without_a_fused_kernel_are_named(
    device: str, tmp_path: Path
) -> None:
    network = model(outside=Float32(), attention=Attention(SDPBackend.MATH))
    fallbacks = {
        event.data["reason"]: event.data for event in trained(network, device, tmp_path).events("kernel.fallback")
    }
    assert "outside.layer" == fallbacks["autocast-disabled"]["module"]
    assert "attention" == fallbacks["sdpa-math"]["module"]


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        (SDPBackend.FLASH_ATTENTION, "flash"),
        (SDPBackend.EFFICIENT_ATTENTION, "efficient"),
        (SDPBackend.CUDNN_ATTENTION, "cudnn"),
    ],
    ids=["flash", "efficient", "cudnn"],
)
def test_fused_attention_is_counted_as_such_and_nothing_falls_back(
    cuda: str, backend: SDPBackend, name: str, tmp_path: Path
) -> None:
    seen = trained(model(attention=Attention(backend)), cuda, tmp_path)
    (census, *_) = (event.data for event in seen.events("kernels.census"))
    assert [name] == census["attention"]
    assert 1.0 == census["share"]
    assert [] == [event.data for event in seen.events("kernel.fallback")]
    assert {} == seen.findings()


def test_products_are_timed_in_the_dtype_of_autocast(device: str, tmp_path: Path) -> None:
    recorded = [event.data for event in trained(model(), device, tmp_path).events("kernels.timed")]
    assert recorded
    for data in recorded:
        seconds = {(operator["op"], operator["dtype"]): operator["seconds"] for operator in data["operators"]}
        assert seconds["addmm", "bfloat16"] > 0
        assert data["whole"]
        assert 0 < data["operator_seconds"] == pytest.approx(sum(seconds.values()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_healthy_training_has_no_finding(device: str, dtype: torch.dtype, tmp_path: Path) -> None:
    assert {} == trained(model(hidden=torch.nn.Linear(WIDTH, WIDTH)), device, tmp_path, dtype=dtype).findings()


def test_nvml_reads_the_device_that_the_run_names(cuda: str, tmp_path: Path) -> None:
    pytest.importorskip("pynvml", reason="NVML is read by nvidia-ml-py, which is not installed")
    seen = trained(model(), cuda, tmp_path, steps=5)
    (hello, *_) = stream(seen.run, tmp_path)[1]
    reader = Nvml([hello.environment["device_uuid"]], interval_seconds=0.1)
    results = until(reader, lambda found: len(found) >= 3)
    reader.stop()
    devices, *readings = results
    assert isinstance(devices, list)
    (device,) = devices
    assert isinstance(device, Device)
    assert torch.cuda.get_device_name() == device.model
    for reading in readings:
        assert isinstance(reading, DeviceReading), reading
        assert {f"{name}.{device.gpu}" for name in READINGS} == set(reading.values)
        assert all(map(math.isfinite, reading.values.values())), reading.values
        assert reading.values[f"memory_used_bytes.{device.gpu}"] >= torch.cuda.memory_allocated()


def until(reader: Nvml, done: Callable[[list[object]], bool]) -> list[object]:
    """The results of a reader, once they are what was waited for, or after 20 seconds."""
    results: list[object] = []
    deadline = time.monotonic() + 20
    while not done(results) and time.monotonic() < deadline:
        results += reader.results()
        time.sleep(0.05)
    return results
