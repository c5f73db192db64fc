"""stale-stack fires for an old torch and for a GPU without tensor cores for the dtype; a CPU has its own rules."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ammeter.verdicts.framework.finding import Finding
from ammeter.watching import run_facts
from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import findings
from tests.agent.streams_kernels import GPU, on
from tests.agent.training import watching


def entered(dtype: str, capability: str, device: str = "cuda", grad: bool = True) -> Stream:
    stream = on(Stream(), **{**GPU, "device": "NVIDIA Tesla", "capability": capability})
    return stream.event("autocast.entered", device=device, dtype=dtype, grad=grad)


def found(stream: Stream) -> Finding:
    return findings(stream)["stale-stack"]


@pytest.mark.parametrize("version", ["2.3.1", "1.13.1+cu117", "2.0.0a0+git1234"])
def test_a_torch_older_than_2_4_is_told_at_once(version: str) -> None:
    finding = found(on(Stream(), torch=version))
    assert ("ticket", 0, 0) == (finding.severity, finding.first_step, finding.opened_step)
    assert f"The run uses torch {version}, which is older than 2.4" in finding.cause
    assert "pip install 'torch>=2.4'" in finding.fix


@pytest.mark.parametrize("version", ["2.4.0", "2.13.0+cpu", "10.1", "", "main"])
def test_a_newer_torch_or_one_that_does_not_say_is_fine(version: str) -> None:
    assert {} == findings(on(Stream(), torch=version))


def test_bfloat16_before_ampere_is_told_with_float16_as_the_way_out() -> None:
    finding = found(entered("bfloat16", "7.5"))
    assert "The GPU has no tensor cores for bfloat16" == finding.title
    assert "NVIDIA Tesla with compute capability 7.5, has no tensor cores for bfloat16" in finding.cause
    assert (
        "dtype=torch.float16) with torch.amp.GradScaler('cuda'), or use a GPU of compute capability 8.0" in finding.fix
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_before_volta_there_is_no_dtype_that_pays(dtype: str) -> None:
    assert found(entered(dtype, "6.1")).fix.startswith("Train in float32 on this GPU, or use a GPU of")


@pytest.mark.parametrize(
    ("dtype", "capability"), [("float16", "7.0"), ("bfloat16", "8.0"), ("bfloat16", "12.0"), ("bfloat16", "")]
)
def test_a_gpu_with_tensor_cores_or_one_that_is_not_known_is_fine(dtype: str, capability: str) -> None:
    assert {} == findings(entered(dtype, capability))


def entered_on(device: str, dtype: str, capability: str = "7.5") -> Stream:
    stream = on(Stream(), **{**GPU, "device": device, "capability": capability})
    return stream.event("autocast.entered", device="cuda", dtype=dtype, grad=True)


@pytest.mark.parametrize("device", ["NVIDIA GeForce GTX 1660 SUPER", "NVIDIA GeForce GTX 1650", "Quadro T2000"])
def test_float16_on_a_gpu_that_computes_wrong_in_it_is_told(device: str) -> None:
    finding = found(entered_on(device, "float16"))
    assert "This series of GPUs is known for wrong results in float16" == finding.title
    assert f"Autocast uses float16 on a {device}." in finding.cause
    assert finding.fix.startswith("Train in float32, with autocast off.")
    assert finding.evidence["device"] == device


def test_bfloat16_on_such_a_gpu_is_not_replaced_by_float16() -> None:
    assert found(entered_on("NVIDIA GeForce GTX 1660 Ti", "bfloat16")).fix.startswith("Train in float32 on this GPU")


@pytest.mark.parametrize(
    ("device", "capability"),
    [("Tesla T4", "7.5"), ("NVIDIA GeForce RTX 2060", "7.5"), ("NVIDIA TITAN RTX", "7.5"), ("NVIDIA T1000", "8.9")],
)
def test_other_gpus_of_its_generation_are_fine(device: str, capability: str) -> None:
    assert {} == findings(entered_on(device, "float16", capability))


def test_autocast_on_the_cpu_or_for_inference_is_fine() -> None:
    assert {} == findings(entered("float16", "6.1", device="cpu"))
    assert {} == findings(entered("bfloat16", "7.5", grad=False))


def test_both_are_one_finding() -> None:
    stream = on(entered("bfloat16", "7.5"), **{**GPU, "torch": "2.1.0", "capability": "7.5"})
    finding = found(stream)
    assert 1 == finding.times
    assert "torch 2.1.0, which is older than 2.4" in finding.cause
    assert "compute capability 7.5" in finding.cause


@pytest.mark.parametrize(("version", "expected"), [("2.2.0", {"stale-stack"}), ("2.13.0", set())])
def test_what_torch_says_of_itself_is_read_in_a_real_run(
    version: str, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(tmp_path, model, optimizer) as seen:
        model(torch.randn(8, 8)).sum().backward()
        optimizer.step()
    assert expected == set(seen.findings())


def test_the_generation_of_a_gpu_is_said_where_nvidia_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 6))
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert {"capability": "8.6"} == run_facts.capability()
    monkeypatch.setattr(torch.version, "cuda", None)
    assert {} == run_facts.capability()
