"""The Triton pass gives the numbers of float64 for any values, layout and size, and does not wait."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch

from ammeter.tensors import NORM, cuda
from ammeter.tensors.cuda import Device
from tests.agent.stats_reference import (
    FLOATS,
    HOSTILE,
    hostile,
    random_bits,
    reference,
    spectrum_reference,
)
from tests.agent.stats_reference import assert_same as assert_same_within

assert_same = partial(assert_same_within, rel=cuda.NORM_ERROR)

pytest.importorskip("triton", reason="Triton is not installed: torch's operators read the gradients")

BLOCK = 4096
CHUNK = cuda.MIN_BLOCKS * BLOCK
SIZES = (1, 77, BLOCK - 1, BLOCK, BLOCK + 1, CHUNK, CHUNK + 1, 2 * CHUNK + 77)


@pytest.fixture
def reader(cuda: str) -> Iterator[Device]:
    made = Device()
    yield made
    assert "" == made.slow, "the kernels do not run, and torch's operators took their place"


@pytest.mark.parametrize("dtype", cuda.KINDS, ids=str)
def test_hostile_numbers_are_read_as_float64_reads_them(dtype: torch.dtype, reader: Device) -> None:
    tensors = hostile(dtype)
    for name, tensor in zip(HOSTILE, tensors, strict=True):
        rows, spectrum = reader.read_with_spectrum([tensor.to("cuda")])
        assert_same(reference([tensor]), rows.cpu().numpy())
        assert spectrum_reference([tensor]).tolist() == spectrum.cpu().tolist(), name


def test_all_dtypes_and_layouts_together_keep_their_order(reader: Device) -> None:
    strided = [torch.randn(40, 50).to(dtype)[:, ::2] for dtype in FLOATS]
    turned = [torch.randn(40, 50).to(dtype).t() for dtype in FLOATS]
    empty = [torch.empty(shape, dtype=dtype) for dtype in FLOATS for shape in ((0,), (3, 0))]
    tensors = [*strided, *(tensor for dtype in FLOATS for tensor in hostile(dtype)), *turned, *empty]
    on_device = [tensor.to("cuda") for tensor in tensors]
    for _ in range(2):
        assert_same(reference(tensors), reader.read(on_device).cpu().numpy())


@pytest.mark.parametrize("dtype", cuda.KINDS, ids=str)
def test_any_pattern_of_bits_in_any_size_is_read(dtype: torch.dtype, reader: Device) -> None:
    for size in SIZES:
        tensors = [random_bits(dtype, size, 1), random_bits(dtype, 100, 2)]
        rows, spectrum = reader.read_with_spectrum([tensor.to("cuda") for tensor in tensors])
        assert_same(reference(tensors), rows.cpu().numpy())
        assert spectrum_reference(tensors).tolist() == spectrum.cpu().tolist(), size


@pytest.mark.parametrize("dtype", cuda.KINDS, ids=str)
def test_tensors_that_start_between_16_bytes_are_read(dtype: torch.dtype, reader: Device) -> None:
    source = random_bits(dtype, 2 * BLOCK, 3)
    there = source.to("cuda")
    for shift in (1, 3, 8):
        assert_same(reference([source[shift:], source]), reader.read([there[shift:], there]).cpu().numpy())


@pytest.mark.parametrize(
    ("at", "value"), [(0, np.nan), (BLOCK - 1, -np.inf), (CHUNK - 1, np.inf), (CHUNK, np.nan), (2 * CHUNK + 4, np.nan)]
)
def test_the_one_number_that_matters_is_found_in_any_chunk(at: int, value: float, reader: Device) -> None:
    tensor = torch.full((2 * CHUNK + 5,), 0.5)
    tensor[at] = value
    nans, infs = int(np.isnan(value)), int(np.isinf(value))
    read = reader.read([torch.ones(3).to("cuda"), tensor.to("cuda")]).cpu()
    assert [0.5, nans, infs, 0, 0, 0, 0] == read[1, NORM + 1 :].tolist()


def test_reading_does_not_wait_and_leaves_the_tensors_as_they_were(reader: Device) -> None:
    tensors = [tensor.to("cuda") for tensor in hostile(torch.float32)]
    before = [tensor.view(torch.int32).cpu().tolist() for tensor in tensors]
    versions = [tensor._version for tensor in tensors]
    reader.read(tensors)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        reader.read_with_spectrum(tensors)
        reader.read([*tensors, tensors[0]])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert before == [tensor.view(torch.int32).cpu().tolist() for tensor in tensors]
    assert versions == [tensor._version for tensor in tensors]
