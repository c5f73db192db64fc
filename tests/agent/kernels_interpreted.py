"""The kernels for GPUs as Triton's interpreter runs them, on the CPU. test_stats_device.py starts this file with
TRITON_INTERPRET=1, which has to be set before anything imports Triton.

Not seen here: how fast they are, programs that run at the same time, and whether an address suits its load.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

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

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy runs the kernels here, and warns of NaN

NARROW = cuda.KINDS
BLOCK = 4096
CHUNK = cuda.MIN_BLOCKS * BLOCK
SHORT_CHUNK = 2 * BLOCK
"""Elements of a chunk in a test that needs many chunks: the interpreter takes 15 ms for a block."""


@pytest.fixture
def reader() -> Iterator[Device]:
    made = Device()
    yield made
    assert "" == made.slow


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("case", range(len(HOSTILE)), ids=list(HOSTILE))
def test_hostile_numbers_are_read_as_numpy_reads_them(case: int, dtype: torch.dtype, reader: Device) -> None:
    tensor = hostile(dtype)[case]
    rows, spectrum = reader.read_with_spectrum([tensor])
    assert_same(reference([tensor]), rows.numpy())
    assert spectrum_reference([tensor]).tolist() == spectrum.tolist()


def test_tensors_of_all_kinds_are_read_together_and_keep_their_order(reader: Device) -> None:
    tensors = [tensor for case in range(len(HOSTILE)) for dtype in FLOATS for tensor in hostile(dtype)[case : case + 1]]
    assert_same(reference(tensors), reader.read(tensors).numpy())


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, CHUNK, CHUNK + 1, 2 * CHUNK + 77])
def test_any_pattern_of_bits_is_read_as_numpy_reads_it(size: int, dtype: torch.dtype, reader: Device) -> None:
    tensors = [random_bits(dtype, size, 1), random_bits(dtype, 100, 2)]
    rows, spectrum = reader.read_with_spectrum(tensors)
    assert_same(reference(tensors), rows.numpy())
    assert spectrum_reference(tensors).tolist() == spectrum.tolist()


@pytest.mark.parametrize("at", [0, BLOCK - 1, BLOCK, SHORT_CHUNK - 1, SHORT_CHUNK, 5 * SHORT_CHUNK + 4])
def test_the_one_number_that_matters_is_found_in_any_chunk(
    at: int, reader: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "MIN_BLOCKS", SHORT_CHUNK // BLOCK)
    tensor = torch.full((5 * SHORT_CHUNK + 5,), 0.5)
    tensor[at] = np.nan
    expected = [0.5, 1, 0, 0, 0, 0, 0]
    assert expected == reader.read([torch.ones(3), tensor])[1, NORM + 1 :].tolist()


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_tensors_that_start_between_16_bytes_are_read_too(dtype: torch.dtype, reader: Device) -> None:
    source = random_bits(dtype, 2 * BLOCK, 3)
    for shift in (1, 3, 8):
        tensors = [source[shift:], source]
        assert_same(reference(tensors), reader.read(tensors).numpy())


def test_one_reader_follows_tensors_that_change_their_looks_and_addresses(reader: Device) -> None:
    sets: list[list[torch.Tensor]] = [
        [torch.randn(4, 5), torch.randn(7)],
        [torch.randn(4, 5), torch.randn(7)],
        [torch.randn(4, 5), torch.randn(8)],
        [torch.randn(4, 5).half(), torch.randn(8)],
        [torch.randn(5, 4).t(), torch.randn(8).double()],
        [torch.randn(4, 10)[:, ::2], torch.randn(8)],
        [torch.randn(4, 10)[:, ::2], torch.randn(8)],
        [torch.randn(4, 10)[:, ::2]],
        [torch.randn(4, 5), torch.randn(7), torch.randn(2).bfloat16(), torch.empty(0)],
        [torch.ones(1).expand(4, 5), torch.randn(7)],
        [torch.empty(0), torch.empty(3, 0)],
    ]
    for tensors in sets:
        for _ in range(2):
            assert_same(reference(tensors), reader.read(tensors).numpy())


def test_memory_is_allocated_when_the_looks_change_and_not_in_each_step(reader: Device) -> None:
    rows = [reader.read([torch.randn(100), torch.randn(3)]).data_ptr() for _ in range(4)]
    assert 1 == len(set(rows))


def test_an_address_that_changes_is_followed_in_the_same_memory(reader: Device) -> None:
    kept = [torch.full((10,), float(at)) for at in range(5)]
    assert [at * np.sqrt(10) for at in range(5)] == pytest.approx(
        [float(reader.read([tensor])[0, NORM]) for tensor in kept], rel=cuda.NORM_ERROR
    )


def test_each_spectrum_begins_at_nothing(reader: Device) -> None:
    tensors = [torch.randn(500)]
    first = reader.read_with_spectrum(tensors)[1].tolist()
    reader.read(tensors)
    assert first == reader.read_with_spectrum(tensors)[1].tolist()
    assert 500 == sum(first)


@pytest.mark.parametrize("most", [1, 2, 7])
def test_chunks_grow_when_there_would_be_too_many(most: int, reader: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "MAX_CHUNKS", most)
    monkeypatch.setattr(cuda, "MIN_BLOCKS", 1)
    tensors = [random_bits(torch.float32, size, size) for size in (9 * BLOCK + 1, 5, 6 * BLOCK)]
    assert_same(reference(tensors), reader.read(tensors).numpy())


def test_many_chunks_of_one_tensor_are_added_up(reader: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "MIN_BLOCKS", 1)
    tensors = [torch.randn(size * BLOCK, generator=torch.Generator().manual_seed(size)) for size in (1, 33)]
    assert_same(reference(tensors), reader.read(tensors).numpy())


def test_reading_keeps_no_tensor_and_leaves_it_as_it_was(reader: Device) -> None:
    tensor = torch.tensor([1.0, -0.0, 1e-40, np.nan, -np.inf, 1e38])
    before, version, kept = tensor.view(torch.int32).tolist(), tensor._version, weakref.ref(tensor)
    reader.read([tensor])
    assert (before, version) == (tensor.view(torch.int32).tolist(), tensor._version)
    del tensor
    assert kept() is None


def test_a_tensor_whose_memory_was_given_back_is_refused_and_not_read(reader: Device) -> None:
    tensor = torch.ones(40)
    reader.read([tensor])
    tensor.untyped_storage().resize_(0)
    for kernel_reader in (reader, Device()):
        with pytest.raises(ValueError, match="has no memory"):
            kernel_reader.read([tensor])


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def test_the_modes_of_a_program_do_not_see_the_reading(reader: Device) -> None:
    tensors = [torch.randn(5), torch.randn(4, 4)[:, ::2], torch.randn(3).double()]
    with _Operators() as operators:
        rows, _ = reader.read_with_spectrum(tensors)
    assert [] == operators.seen
    assert_same(reference(tensors), rows.numpy())


def test_a_reader_that_began_in_inference_mode_works_after_it(reader: Device) -> None:
    for _ in range(2):
        with torch.inference_mode():
            reader.read_with_spectrum([torch.ones(3)])
        reader.read_with_spectrum([torch.ones(3)])


def test_the_first_call_compiles_what_later_ones_need(reader: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[bool] = []
    launch = cuda._Plan.launch

    def noted(plan: Any, tensors: Any, spectrum: bool) -> None:
        launched.append(spectrum)
        launch(plan, tensors, spectrum)

    monkeypatch.setattr(cuda._Plan, "launch", noted)
    for size in (3, 3, 4):
        reader.read([torch.ones(size)])
    assert [True, False, False, False] == launched
