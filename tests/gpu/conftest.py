"""Where these tests run: on CUDA, else not at all. GPU_TESTS_ON=cpu tries what of them a CPU can do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS has the same bits twice only with this

import torch

from ammeter.preparation import import_hook

import_hook.remove()  # as in tests/conftest.py, which `make gpu` does without

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What torch warns of on some device or other, for instance that it may not see every waiting, is no failure."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture
def device() -> str:
    if os.environ.get("GPU_TESTS_ON") == "cpu":
        return "cpu"
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device, and none can be installed; `make gpu` runs this where there is one")
    return "cuda"


@pytest.fixture
def cuda(device: str) -> str:
    if device != "cuda":
        pytest.skip("needs what only CUDA has: graphs, capturable optimizers, waiting for the device")
    return device


@pytest.fixture(autouse=True)
def _training_has_the_same_bits_twice() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
