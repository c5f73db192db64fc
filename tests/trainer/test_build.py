from __future__ import annotations

import pytest
import torch

import build
from options import read_options


def test_the_learning_rate_rises_and_falls_to_a_tenth() -> None:
    rates = [build.warm_up_then_cosine(applied, 100) for applied in range(101)]
    assert 1.0 == max(rates) == rates[20]
    assert sorted(rates[:20]) == rates[:20]
    assert sorted(rates[20:], reverse=True) == rates[20:]
    assert 0.1 == pytest.approx(rates[100])
    assert 0.1 == pytest.approx(build.warm_up_then_cosine(500, 100))


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
def test_validation_batches_are_held_back_and_always_the_same(arch: str) -> None:
    options = read_options(["--tiny", "--arch", arch])
    (training, validation), (_, again) = (build.build_data(options, torch.device("cpu")) for _ in range(2))
    assert build.VALIDATION_BATCHES == len(validation)
    assert all(torch.equal(one[0], other[0]) for one, other in zip(validation, again, strict=True))
    assert not any(torch.equal(one[0], training.batch(number)[0]) for number, one in enumerate(validation))


def test_the_optimizer_is_the_one_that_is_asked_for() -> None:
    for name, kind, rate in (("adamw", torch.optim.AdamW, 3e-3), ("sgd", torch.optim.SGD, 0.3)):
        options = read_options(["--tiny", "--optimizer", name])
        optimizer = build.build_optimizer(build.build_model(options), options)
        assert (kind, rate) == (type(optimizer), optimizer.param_groups[0]["lr"])
