"""Norms by one call of torch, where they are to be doubted, and how they are known then.

The rest is in test_stats_native.py: the plain reader and the compiled one give the same numbers.
"""

from __future__ import annotations

import math

import pytest
import torch

from ammeter.tensors import cpu
from tests.agent.stats_reference import FLOATS, INF, NAN, payload

FINITE: dict[str, list[float]] = {
    "ordinary numbers": [0.5, -2.0, 3.25, 1e-3],
    "one zero": [0.0],
    "zeros of both signs": [0.0, -0.0, 0.0],
    "subnormals of float16": [2.0**-24, -(2.0**-20), 2.0**-15, 0.0, 1.0],
    "subnormals of float32": [2.0**-149, -(2.0**-140), 2.0**-130, 0.0],
    "squares that overflow float32": [1e38, -1e38, 3e38],
    "squares that vanish in float32": [1e-25, -3e-26, 0.0, 1e-30],
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", FINITE)
def test_the_norm_of_a_finite_gradient_is_that_of_float64(case: str, dtype: torch.dtype) -> None:
    gradient = torch.tensor(FINITE[case], dtype=torch.float64).to(dtype)
    if not torch.isfinite(gradient).all():
        gradient = gradient.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)
    assert float(gradient.double().norm()) == pytest.approx(cpu.norm(gradient), rel=1e-12, abs=0)
    assert 1.0 == math.copysign(1.0, cpu.norm(gradient))


NONFINITE: dict[str, list[float]] = {
    "a NaN": [1.0, NAN, 2.0],
    "NaNs with payloads, quiet and signalling": [payload(0x7FC0A3A3), payload(0xFFFFFFFF), payload(0x7F800001), 0.0],
    "infinities of both signs": [INF, -INF, 0.0, 1e-40],
    "both kinds": [NAN, -INF],
    "nothing else": [NAN],
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", NONFINITE)
def test_what_is_not_finite_is_never_hidden_in_a_norm(case: str, dtype: torch.dtype) -> None:
    gradient = torch.tensor(NONFINITE[case], dtype=torch.float64).to(dtype)
    assert not math.isfinite(float(cpu.norms([gradient])[0]))
    assert [0] == cpu.doubtful(cpu.norms([gradient]).numpy()).tolist()
    assert not math.isfinite(cpu.norm(gradient))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_norms_of_many_tensors_are_those_of_each_in_float32_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    gradients = [(torch.randn(size) * 10.0 ** (size % 7 - 3)).to(dtype) for size in (1, 2, 31, 4096, 10_007)]
    expected = [float(gradient.double().norm()) for gradient in gradients]
    assert expected == pytest.approx(cpu.norms(gradients).tolist(), rel=1e-5)
    assert torch.float32 == cpu.norms(gradients).dtype


def test_norms_of_mixed_dtypes_keep_their_order() -> None:
    gradients = [torch.full((4,), float(index + 1), dtype=FLOATS[index % 4]) for index in range(8)]
    assert [2.0 * (index + 1) for index in range(8)] == cpu.norms(gradients).tolist()


def test_norms_of_half_precision_do_not_overflow_where_half_precision_would() -> None:
    gradient = torch.full((100,), 60000.0, dtype=torch.float16)
    assert [600_000.0] == pytest.approx(cpu.norms([gradient]).tolist(), rel=1e-6)


@pytest.mark.parametrize("value", [1e38, 1e20, 1e-23, 2.0**-149])
def test_a_norm_whose_squares_left_float32_is_doubted_and_then_known(value: float) -> None:
    gradient = torch.full((10,), value)
    assert [1] == cpu.doubtful(cpu.norms([torch.ones(3), gradient, torch.ones(3)]).numpy()).tolist()
    assert float(gradient.double().norm()) == pytest.approx(cpu.norm(gradient), rel=1e-12)


def test_a_float64_gradient_whose_square_overflows_float64_has_a_norm() -> None:
    gradient = torch.full((4,), 1e300, dtype=torch.float64)
    assert 2e300 == pytest.approx(cpu.norm(gradient), rel=1e-12)


def test_a_gradient_larger_than_a_part_is_summed_over_its_parts() -> None:
    gradient = torch.full((cpu.CHUNK_ELEMENTS + 7,), 1e30)
    assert 1e30 * math.sqrt(cpu.CHUNK_ELEMENTS + 7) == pytest.approx(cpu.norm(gradient), rel=1e-6)


def test_strided_expanded_and_transposed_gradients_have_the_norms_of_their_copies() -> None:
    whole = torch.randn(12, 10)
    for tensor in (whole.t(), whole[::2, ::3], whole[:, 3], torch.ones(1).expand(7), torch.tensor(3.0), whole.flip(0)):
        assert cpu.norm(tensor.contiguous()) == pytest.approx(cpu.norm(tensor), rel=1e-12)
        assert cpu.norms([tensor.contiguous()]).tolist() == pytest.approx(cpu.norms([tensor]).tolist(), rel=1e-6)


def test_norms_leave_the_gradient_as_it_was() -> None:
    gradient = torch.tensor([1.0, -0.0, 1e-40, payload(0x7FC0A3A3), -INF, 1e38])
    before, version = gradient.view(torch.int32).tolist(), gradient._version
    cpu.norms([gradient])
    cpu.norm(gradient)
    assert (before, version) == (gradient.view(torch.int32).tolist(), gradient._version)
