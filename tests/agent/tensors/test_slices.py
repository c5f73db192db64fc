from __future__ import annotations

import numpy as np
import pytest
import torch

from ammeter.tensors import slices
from ammeter.tensors.slices import (
    STATISTICS,
    Buffer,
    Slices,
    compare,
    elements_per_tensor,
    max_tensors,
    positions,
    readable,
    turns,
)


def _dice(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


SHAPES = [(3,), (40, 30), (4096,), (4097,), (65, 64), (300, 401), (7, 5, 3, 3), (1,)]


def _tensors(seed: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(shape, generator=_dice(seed + at)).to(dtype) for at, shape in enumerate(SHAPES)]


@pytest.mark.parametrize("numel", [1, 15, 4096, 4097, 4111, 5000, 65_536, 1_000_003])
def test_a_slice_has_each_element_once_and_reaches_from_begin_to_end(numel: int) -> None:
    chosen = positions(numel)
    assert min(numel, 4096) == len(set(chosen.tolist())) == len(chosen)
    assert 0 == chosen[0]
    assert 0 <= numel - 1 - chosen[-1] < max(1, numel / 8)


def test_a_slice_of_a_matrix_comes_from_many_of_its_columns() -> None:
    assert len(np.unique(positions(1024 * 1024) % 1024)) > 900


@pytest.mark.parametrize("numel", [4097, 4111, 5000, 8192, 65_536, 300_007])
def test_every_element_has_its_turn(numel: int) -> None:
    met = np.zeros(numel, bool)
    for turn in range(1, turns(numel) + 1):
        chosen = positions(numel, turn=turn)
        assert 4096 == len(np.unique(chosen))
        assert 0 <= chosen.min() <= chosen.max() < numel
        met[chosen] = True
    assert met.all()
    assert (positions(numel, turn=1) == positions(numel, turn=1 + turns(numel))).all()


def test_a_part_longer_than_a_run_is_met_long_before_the_last_turn() -> None:
    numel, part = 1_000_000, range(500_100, 500_400)
    met = [turn for turn in range(1, turns(numel) + 1) if np.isin(positions(numel, turn=turn), part).any()]
    assert met[0] < 40
    assert turns(numel) > 200


def test_a_small_tensor_is_read_whole_in_every_turn() -> None:
    assert 0 == turns(4096)
    assert (positions(4096, turn=7) == np.arange(4096)).all()


@pytest.mark.parametrize("turn", [1, 2, 9])
def test_a_turn_reads_the_same_elements_of_any_layout_of_memory(turn: int) -> None:
    whole = torch.arange(2 * 40_000.0)
    for tensor in (whole[:40_000], whole[40_000:], whole.view(2, 40_000).t()[:20_000]):
        layout = Slices([tensor])
        buffer = Buffer(layout)
        layout.copy([tensor], buffer, turn)
        chosen = torch.from_numpy(positions(tensor.numel(), turn=turn))
        assert tensor.reshape(-1)[chosen].tolist() == buffer.places[0].reshape(-1).tolist()


def test_buffers_of_any_number_of_tensors_keep_within_the_limit() -> None:
    limit = slices.UPDATES_BYTES
    assert 4096 == elements_per_tensor(300, limit)
    for tensors in (1, 300, 1000, max_tensors(limit)):
        assert tensors * elements_per_tensor(tensors, limit) * slices.ELEMENT_BYTES <= limit
    assert 32 * 2**20 >= slices.UPDATES_BYTES + slices.COPIES_BYTES


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_sums_over_slices_are_those_of_float64(dtype: torch.dtype) -> None:
    before, update, slope, earlier = (_tensors(seed, dtype) for seed in (0, 10, 20, 30))
    slope[1][:20] = 0
    after = [old + (step * (step > 0)) for old, step in zip(before, update, strict=True)]
    after[5][200:] = float("nan")
    after[6][0, 0] = float("inf")
    layout = Slices(before)
    parts = [Buffer(layout) for _ in range(5)]
    for part, tensors in zip(parts, (before, after, slope, earlier), strict=False):
        layout.copy(tensors, part)
    table = compare(*parts).numpy()
    norms = [STATISTICS.index(name) for name in ("norm", "norm_before", "update", "gradient", "earlier")]
    found = dict(zip(STATISTICS, layout.sums(slices.squares(table, norms)), strict=True))

    for at in range(len(SHAPES)):
        chosen = positions(before[at].numel())
        old, new, g, e = (buffer[at].reshape(-1).double().numpy()[chosen] for buffer in (before, after, slope, earlier))
        expected = {
            "norm": (new**2).sum(),
            "norm_before": (old**2).sum(),
            "update": ((new - old) ** 2).sum(),
            "lost": ((new == old) & (g != 0)).sum(),
            "meant": (g != 0).sum(),
            "nonfinite": (~np.isfinite(new)).sum(),
            "product": (g * e).sum(),
            "gradient": (g**2).sum(),
            "earlier": (e**2).sum(),
        }
        for name, value in expected.items():
            assert value == pytest.approx(found[name][at], rel=1e-5, abs=1e-4, nan_ok=True), (name, SHAPES[at])


@pytest.mark.parametrize("shape", [(6, 4, 3, 3), (32, 16, 5, 5)])
def test_any_layout_in_memory_is_read_in_the_same_order(shape: tuple[int, ...]) -> None:
    usual = torch.randn(shape, generator=_dice(1))
    last = usual.to(memory_format=torch.channels_last)
    turned = usual.transpose(0, 1).contiguous().transpose(0, 1)
    layout = Slices([usual, usual, usual])
    buffer = Buffer(layout)
    layout.copy([usual, last, turned], buffer)
    assert buffer.places[0].tolist() == buffer.places[1].tolist() == buffer.places[2].tolist()
    assert (
        usual.reshape(-1)[torch.from_numpy(positions(usual.numel()))].tolist() == buffer.places[0].reshape(-1).tolist()
    )


def test_the_place_of_a_tensor_that_is_not_there_becomes_zero() -> None:
    tensors = _tensors(3)
    layout = Slices(tensors)
    buffer = Buffer(layout)
    layout.copy(tensors, buffer)
    layout.copy([None, torch.ones(5), *tensors[2:]], buffer)
    assert [0.0, 0.0] == [float(buffer.places[at].abs().sum()) for at in (0, 1)]
    assert tensors[2].tolist() == buffer.places[2].tolist()


def test_reading_changes_nothing_and_needs_no_gradient() -> None:
    weight = torch.nn.Parameter(torch.randn(100, 100, generator=_dice(2)))
    version, bits = weight._version, weight.tolist()
    layout = Slices([weight])
    with torch.no_grad():
        layout.copy([weight], Buffer(layout))
    assert (version, bits) == (weight._version, weight.tolist())


def test_what_has_no_numbers_to_read_is_told_apart() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 3))
    assert weight is readable(weight)
    assert (2, 3, 2) == tuple(getattr(readable(torch.ones(2, 3, dtype=torch.complex64)), "shape", ()))
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    for other in (
        freed,
        torch.ones(0),
        torch.ones(3, dtype=torch.int64),
        torch.ones(3, device="meta"),
        torch.ones(2, 2).to_sparse(),
        torch.nn.parameter.UninitializedParameter(),
    ):
        assert readable(other) is None
