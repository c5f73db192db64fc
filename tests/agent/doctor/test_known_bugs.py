"""The known bugs of a machine's kernels are listed beforehand, and those of others are not."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch

from ammeter.doctor import known_bugs


def with_gpus(version: str, cudnn: int, *gpus: tuple[str, tuple[int, int]], cuda: str | None = "12.8") -> ModuleType:
    """torch, as it describes such a machine."""
    return cast(
        ModuleType,
        SimpleNamespace(
            __version__=version,
            version=SimpleNamespace(cuda=cuda),
            backends=SimpleNamespace(cudnn=SimpleNamespace(version=lambda: cudnn)),
            cuda=SimpleNamespace(
                is_available=lambda: bool(gpus),
                device_count=lambda: len(gpus),
                get_device_name=lambda index: gpus[index][0],
                get_device_capability=lambda index: gpus[index][1],
            ),
        ),
    )


H100: Any = ("NVIDIA H100 80GB HBM3", (9, 0))


def test_the_bugs_of_a_gpu_are_listed_with_thread_condition_and_remedy() -> None:
    lines = list(known_bugs.lines(with_gpus("2.13.0+cu130", 92000, H100)))
    assert [("warn", "known bug")] == [(line.level, line.about) for line in lines]
    assert "attn_mask" in lines[0].text
    assert "https://github.com/pytorch/pytorch/issues/196678" in lines[0].text
    assert "torch.backends.cuda.enable_cudnn_sdp(False)" == lines[0].remedy


def test_a_bug_that_two_gpus_have_is_listed_once() -> None:
    assert 1 == len(list(known_bugs.lines(with_gpus("2.13.0+cu130", 92000, H100, H100))))


@pytest.mark.parametrize(
    "machine",
    [
        with_gpus("2.10.0+cu128", 91400, H100),
        with_gpus("2.13.0+cu130", 92000, ("NVIDIA A100-SXM4-80GB", (8, 0))),
        with_gpus("2.13.0+rocm7", 0, ("AMD Instinct MI300X", (9, 4)), cuda=None),
        with_gpus("2.13.0+cpu", 0, cuda=None),
    ],
    ids=["an older torch", "another GPU", "ROCm", "a CPU"],
)
def test_other_machines_have_none_of_them(machine: ModuleType) -> None:
    assert [("ok", "known bugs")] == [(line.level, line.about) for line in known_bugs.lines(machine)]


def test_this_machine_is_read_from_torch_itself() -> None:
    if not torch.cuda.is_available():
        assert [{"torch": str(torch.__version__)}] == known_bugs._devices(torch)
