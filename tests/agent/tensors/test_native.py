"""The compiled reader and the plain one against numpy, on numbers, shapes and addresses that break careless code."""

from __future__ import annotations

import shutil
import subprocess
import sys
import weakref
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ammeter.tensors import ABSMAX, GRID, NANS, NORM, SMALL, ZEROS, cpu, native
from ammeter.tensors.layout import layout_check
from tests.agent.stats_reference import FLOATS, HOSTILE, assert_same, hostile, random_bits, reference

Array = npt.NDArray[np.float64]


Read = Callable[[Sequence[torch.Tensor]], Array | None]


compiled = pytest.mark.skipif(
    bool(native.MISSING) and not any(map(shutil.which, ("cc", "gcc", "clang"))),
    reason="no C compiler: Ammeter reads gradients with torch's operators here",
)
"""Where there is a compiler the tests run, and fail without the library."""


LEVELS = [
    pytest.param(level, marks=compiled, id=name) for level, name in enumerate(("any processor", "AVX2", "AVX-512"))
]


READERS = [pytest.param(None, id="plain"), *LEVELS]


def reader(level: int | None) -> Read:
    if level is None:
        return cpu.read
    assert not native.MISSING, f"{native.MISSING}; run make install"
    if level > native.LEVEL:
        pytest.skip(f"this processor does not know the instructions of level {level}")
    return native.Reader(level).read


@compiled
def test_the_library_is_there_and_compiled_from_this_source() -> None:
    assert "" == native.MISSING, "run make install"
    source = native.LIBRARY.with_name("reading.c").read_bytes()
    program = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).ammeter_source() & 0xFFFFFFFF)"
    done = subprocess.run([sys.executable, "-c", program, native.LIBRARY], capture_output=True, text=True, timeout=60)
    assert zlib.crc32(source) == int(done.stdout), "reading.c has changed: run make install"


@pytest.mark.parametrize("level", READERS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", range(len(HOSTILE)), ids=list(HOSTILE))
def test_hostile_numbers_are_read_as_numpy_reads_them(case: int, dtype: torch.dtype, level: int | None) -> None:
    tensors = hostile(dtype)[case : case + 1]
    assert_same(reference(tensors), reader(level)(tensors))


@pytest.mark.parametrize("level", READERS)
def test_tensors_of_all_kinds_are_read_together_and_keep_their_order(level: int | None) -> None:
    tensors = [tensor for dtype in FLOATS for tensor in hostile(dtype)][::-1]
    assert_same(reference(tensors), reader(level)(tensors))


@pytest.mark.parametrize("level", READERS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_any_pattern_of_bits_is_read_as_numpy_reads_it(dtype: torch.dtype, level: int | None) -> None:
    tensors = [
        random_bits(dtype, count, seed) for seed, count in enumerate((1, 7, 64, 1000, 2047, 2049, 16385, 40_000))
    ]
    assert_same(reference(tensors), reader(level)(tensors))


@pytest.mark.parametrize("level", READERS)
@given(data=st.data())
def test_a_few_elements_of_any_bits_are_read_as_numpy_reads_them(data: st.DataObject, level: int | None) -> None:
    dtype = data.draw(st.sampled_from(FLOATS))
    size = torch.tensor([], dtype=dtype).element_size()
    raw = data.draw(st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=70))
    tensor = torch.frombuffer(bytearray(b"".join(raw)), dtype=dtype)
    assert_same(reference([tensor]), reader(level)([tensor]))


@pytest.mark.parametrize("level", READERS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_one_number_that_matters_is_found_wherever_it_stands(dtype: torch.dtype, level: int | None) -> None:
    read = reader(level)
    for size in (1, 15, 16, 17, 31, 33, 2048, 2049, 16384, 16391):
        for at in {0, size // 2, size - 1}:
            for number, column in ((np.nan, NANS), (0.0, ZEROS), (2.0**-20, SMALL), (2.0**-20, GRID), (3.0, ABSMAX)):
                tensor = torch.full((size,), 0.3, dtype=dtype)
                tensor[at] = number
                found = read([tensor])
                assert found is not None
                assert (3.0 if column == ABSMAX else 1.0) == found[0, column], (size, at, number)


@pytest.mark.parametrize("level", READERS)
def test_strided_transposed_expanded_and_shifted_tensors_are_read_like_their_copies(level: int | None) -> None:
    whole = torch.randn(6, 8, 10, 4, generator=torch.Generator().manual_seed(1)) * 1e-3
    tensors = [
        whole.to(memory_format=torch.channels_last),
        whole[0, 0].t(),
        whole[0, 0, ::2, ::3],
        whole[:, :, 3],
        whole[1:, 2:],
        whole.permute(3, 1, 0, 2),
        torch.ones(1).expand(7),
        torch.tensor([[0.5], [2.0]]).expand(2, 9),
        torch.tensor(3.0),
        whole.flip(0),
        whole.reshape(-1)[5:],
        whole.reshape(-1)[1:1000].view(27, 37).t(),
        whole[:, :1],
        torch.empty(0, 5),
        torch.empty(5, 0, 3).transpose(0, 2),
        torch._neg_view(whole[0]),
        whole.half()[..., 1],
    ]
    expected = reference([tensor.contiguous() for tensor in tensors])
    assert_same(expected, reader(level)(tensors))
    for row, other in zip(expected, tensors, strict=True):
        assert_same(row[None], reader(level)([other]))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shift", range(1, 8))
def test_tensors_may_lie_at_any_address(dtype: torch.dtype, level: int, shift: int) -> None:
    source = random_bits(dtype, 1000, 3)
    memory = bytearray(shift) + bytearray(source.view(torch.uint8).numpy().tobytes())
    tensor = torch.frombuffer(memory, dtype=dtype, offset=shift)
    assert tensor.data_ptr() % 8 == (torch.frombuffer(memory, dtype=torch.uint8).data_ptr() + shift) % 8
    assert_same(reference([source]), reader(level)([tensor]))


@pytest.mark.parametrize("level", READERS)
def test_ten_million_elements_are_counted_to_the_last(level: int | None) -> None:
    tensor = torch.full((10_000_003,), 2.0**-20)
    tensor[-1], tensor[5_000_000] = 0.0, np.inf
    found = reader(level)([tensor, tensor[:5_000_000]])
    assert found is not None
    assert [np.inf, 2.0**-20, 0, 1, 1, 10_000_001, 10_000_001, 10_000_001] == found[0].tolist()
    assert 2.0**-20 * np.sqrt(5e6) == pytest.approx(found[1, NORM], rel=1e-12)


@pytest.mark.parametrize("level", READERS)
@pytest.mark.parametrize("value", [1e300, -1e300, 2.0**511, 6.7e153, 1e-300, 1e-310, 5e-324])
def test_float64_whose_squares_leave_float64_has_a_norm(value: float, level: int | None) -> None:
    found = reader(level)([torch.full((4,), value, dtype=torch.float64)])
    assert found is not None
    assert 2 * abs(value) == pytest.approx(found[0, NORM], rel=1e-12, abs=0)
    assert abs(value) == found[0, ABSMAX]


@pytest.mark.parametrize("level", LEVELS)
def test_norms_alone_are_the_norms_of_the_whole_reading(level: int) -> None:
    tensors = [tensor for dtype in FLOATS for tensor in (*hostile(dtype), random_bits(dtype, 5000, 9)[:4000])]
    whole = reader(level)(tensors)
    assert whole is not None
    found = native.Reader(level).norms(tensors)
    assert found is not None
    assert (len(tensors),) == found.shape
    np.testing.assert_allclose(found, whole[:, NORM], rtol=1e-12, atol=0)


@compiled
def test_one_reader_follows_tensors_that_change_their_looks() -> None:
    reader = native.Reader()
    sets: list[list[torch.Tensor]] = [
        [torch.randn(4, 5), torch.randn(7)],
        [torch.randn(4, 5), torch.randn(7)],
        [torch.randn(4, 5), torch.randn(8)],
        [torch.randn(4, 5).half(), torch.randn(8)],
        [torch.randn(5, 4).t(), torch.randn(8)],
        [torch.randn(4, 10)[:, ::2], torch.randn(8)],
        [torch.randn(4, 5)],
        [torch.randn(4, 5), torch.randn(7), torch.nn.Parameter(torch.randn(2))],
        [],
        [torch.randn(4, 5), torch.randn(7)],
        [torch.ones(1).expand(4, 5), torch.randn(7)],
    ]
    for tensors in sets:
        plain = [tensor.detach() for tensor in tensors]
        assert_same(reference(plain), reader.read(tensors))
        assert_same(reference(plain), reader.read(tensors))


@compiled
def test_a_second_reading_leaves_the_first_as_it_was() -> None:
    reader = native.Reader()
    first = reader.read([torch.ones(4)])
    reader.read([torch.full((4,), 5.0)])
    assert first is not None
    assert 2.0 == first[0, NORM]


@compiled
def test_the_same_tensor_twice_is_read_twice() -> None:
    tensor, reader = torch.randn(100), native.Reader()
    for _ in range(3):
        assert_same(reference([tensor, tensor]), reader.read([tensor, tensor]))


@compiled
def test_a_torch_that_cannot_compare_looks_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._C._dynamo.guards", None)
    reader = native.Reader()
    for size in (3, 3, 5):
        tensors = [torch.randn(size), torch.randn(size, 2).t()]
        assert_same(reference(tensors), reader.read(tensors))


@compiled
def test_a_torch_without_its_test_of_looks_is_told_from_one_with_it() -> None:
    """Else every step would look at every tensor, and nothing would fail."""
    tensors = [torch.randn(3), torch.randn(2, 2)]
    same = layout_check(tensors)
    assert same(*[torch.randn(3), torch.randn(2, 2)])
    assert not same(*[torch.randn(3), torch.randn(2, 3)])


@pytest.mark.parametrize("level", READERS)
def test_reading_keeps_no_tensor_and_leaves_it_as_it_was(level: int | None) -> None:
    read = reader(level)
    tensor = torch.tensor([1.0, -0.0, 1e-40, np.nan, -np.inf, 1e38])
    before, version, kept = tensor.view(torch.int32).tolist(), tensor._version, weakref.ref(tensor)
    read([tensor])
    assert (before, version) == (tensor.view(torch.int32).tolist(), tensor._version)
    del tensor
    assert kept() is None


@compiled
def test_a_tensor_whose_memory_was_given_back_is_refused_and_not_read() -> None:
    for offset in (0, 4):
        reader, tensor = native.Reader(), torch.ones(40)[offset:]
        reader.read([tensor])
        tensor.untyped_storage().resize_(0)
        for source in (reader, native.Reader()):
            with pytest.raises(ValueError, match="has no memory"):
                source.read([tensor])


@compiled
def test_zeros_that_torch_keeps_without_memory_are_zeros() -> None:
    found = native.read([torch._efficientzerotensor(6), torch.ones(4)])
    assert found is not None
    assert [0.0, 2.0] == found[:, NORM].tolist()
    assert 6 == found[0, ZEROS]
