"""activation-casts fires where activations go to float32 and straight back, and names the line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_judgement import findings
from tests.agent.streams_kernels import census, on_gpu, round_trips
from tests.agent.training import Seen, line_of, watching

NAME = "activation-casts"
WIDTH = 32

Layer = Callable[[torch.nn.Linear, torch.Tensor], torch.Tensor]


def cast_for_nothing(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return layer(x.float())  # type: ignore[no-any-return]


def cast_like_the_weight(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    x = x.type_as(layer.weight)
    return functional.linear(x.view(-1, WIDTH), layer.weight)


def cast_in_two_lines(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    wide = x.to(torch.float32)
    return wide.bfloat16() + layer(x)  # type: ignore[no-any-return]


def as_it_is(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return layer(x)  # type: ignore[no-any-return]


def normed_in_float32(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return layer(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6))  # type: ignore[no-any-return]


def changed_in_place(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return layer(x.float().mul_(0.5))  # type: ignore[no-any-return]


def outside_of_autocast(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        return layer(x.float()).bfloat16()  # type: ignore[no-any-return]


def to_the_other_half(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return layer(x.float().half().to(x.dtype))  # type: ignore[no-any-return]


class Network(torch.nn.Module):
    def __init__(self, step: Layer) -> None:
        super().__init__()
        self.step = step
        self.first, self.second, self.head = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.step(self.second, self.first(x)))  # type: ignore[no-any-return]


def trained(folder: Path, step: Layer, steps: int = 4, **options: Any) -> Seen:
    model = Network(step)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(folder, model, optimizer, **options) as seen:
        for _ in range(steps):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(torch.randn(16, WIDTH)).float().square().mean()
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    assert [] == seen.events("probe.failed")
    return seen


@pytest.mark.parametrize(
    ("step", "text"),
    [(cast_for_nothing, "x.float()"), (cast_like_the_weight, ".type_as("), (cast_in_two_lines, "torch.float32")],
)
def test_it_names_the_line_of_the_cast(step: Layer, text: str, tmp_path: Path) -> None:
    finding = trained(tmp_path, step).findings()[NAME]
    assert str(finding.caller).endswith(line_of(step, text))
    data = finding.evidence
    assert (2, 2 * 16 * WIDTH * 6, 1) == (data["casts"], data["moved_bytes"], data["lines"])


@pytest.mark.parametrize(
    "step", [as_it_is, normed_in_float32, changed_in_place, outside_of_autocast, to_the_other_half]
)
def test_casts_that_change_something_are_silent(step: Layer, tmp_path: Path) -> None:
    assert NAME not in trained(tmp_path, step).findings()


def test_a_program_that_calls_its_layers_one_by_one_is_counted_whole(tmp_path: Path) -> None:
    first, second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
    with watching(tmp_path, [first, second], optimizer) as seen:
        for _ in range(4):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                hidden = first(torch.randn(16, WIDTH))
            loss = second(hidden.float()).square().mean()
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    (counted,) = seen.events("kernels.census")
    assert (2 * 2 * 16 * WIDTH**2, 0.5) == (counted.data["flops_eligible"], counted.data["share"])
    (fallback,) = seen.events("kernel.fallback")
    assert ("model1", "autocast-off") == (fallback.data["module"], fallback.data["reason"])


def found(share: float, **more: object) -> Finding | None:
    return findings(round_trips(census(on_gpu()), share, **more)).get(NAME)


def test_a_tenth_of_the_time_of_the_matrix_products_is_needed() -> None:
    assert found(0.099) is None
    assert found(0.101) is not None


def test_the_words_have_the_bytes_and_both_remedies() -> None:
    finding = found(0.3, lines=3)
    assert finding is not None
    assert "Activations are cast from bfloat16 to float32 and straight back" == finding.title
    assert finding.cause.startswith(
        "Numbers in bfloat16 are cast to float32 at lora.py:12 and 2 other lines, and these float32 copies are cast"
        " straight back to bfloat16: the numbers that come back are the same, bit for bit, so the casts cost time"
    )
    assert "30 % of the time" in finding.cause
    assert "Remove the cast to float32 at lora.py:12" in finding.fix
    assert "torch.autocast(device_type, enabled=False)" in finding.fix


def test_a_line_of_a_package_is_called_one() -> None:
    finding = found(0.3, caller="env/lib/python3.12/site-packages/peft/tuners/lora/layer.py:9")
    assert finding is not None
    assert "The line belongs to the package peft: override forward() of that module." in finding.fix


def test_casts_are_reported_again_when_they_have_doubled(tmp_path: Path) -> None:
    calls = iter(range(100))

    def step(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return layer(x.float()) + (x.float().to(x.dtype) if next(calls) >= 6 else x)  # type: ignore[no-any-return]

    events = trained(tmp_path, step, steps=10, preset="full").events("kernels.round_trips")
    assert [(1, 2), (6, 4)] == [(event.step, event.data["casts"]) for event in events]
