"""A GPU whose convolution in float16 is wrong fails, and one of a series that is known for it is warned of."""

from __future__ import annotations

import math

import pytest
import torch

from ammeter.doctor.half_convolution import MAX_RELATIVE_ERROR, line_of, relative_error


def test_a_correct_convolution_is_within_the_limit() -> None:
    error = relative_error(torch, torch.device("cpu"))  # the same arithmetic as on a GPU
    assert 0 < error < MAX_RELATIVE_ERROR / 4


@pytest.mark.parametrize("error", [math.nan, 1.0, MAX_RELATIVE_ERROR * 1.1])
def test_nan_zeros_and_other_wrong_numbers_fail(error: float) -> None:
    line = line_of("NVIDIA GeForce GTX 1650", (7, 5), error)
    assert ("fail", "train in float32 on this GPU, with autocast off") == (line.level, line.remedy)


def test_a_series_that_is_known_for_it_is_warned_of_although_this_convolution_is_right() -> None:
    assert "warn" == line_of("NVIDIA GeForce GTX 1650", (7, 5), 0.001).level


@pytest.mark.parametrize(("name", "capability"), [("Tesla T4", (7, 5)), ("NVIDIA H100 80GB HBM3", (9, 0))])
def test_other_gpus_are_fine(name: str, capability: tuple[int, int]) -> None:
    assert "ok" == line_of(name, capability, 0.001).level


def test_a_wrong_convolution_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    correct = torch.nn.functional.conv2d

    def wrong(batch: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        output = correct(batch, weight)
        return output * torch.nan if batch.dtype is torch.float16 else output

    monkeypatch.setattr(torch.nn.functional, "conv2d", wrong)
    assert "fail" == line_of("a GPU", (8, 0), relative_error(torch, torch.device("cpu"))).level
