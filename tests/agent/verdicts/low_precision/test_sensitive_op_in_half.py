"""sensitive-op-in-half fires where an operator in half precision is measurably off, and names the line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.agent.stream_builder import warm
from tests.agent.stream_judgement import findings
from tests.agent.streams_kernels import census, goes_on, on_gpu, sensitive
from tests.agent.training import line_of, watching

NAME = "sensitive-op-in-half"
LENGTH, WIDTH = 400, 16

Step = Callable[[torch.Tensor], torch.Tensor]


def frequencies() -> torch.Tensor:
    return torch.logspace(0, -3, WIDTH)


def turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    return x * angles.cos().to(x.dtype) + x.flip(-1) * angles.sin().to(x.dtype)


def created_in_half(x: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(LENGTH, dtype=torch.bfloat16)
    return turned(x, torch.outer(positions, frequencies().to(positions)))


def cast_like_the_activations(x: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(LENGTH)
    positions = positions.type_as(x)
    return turned(x, positions[:, None] * frequencies())


def multiplied_as_matrices(x: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(LENGTH).float()
    return turned(x, positions[:, None] @ frequencies()[None])


def variance_from_two_means(x: torch.Tensor) -> torch.Tensor:
    x = x + 16
    variance = x.pow(2).mean(-1, keepdim=True) - x.mean(-1, keepdim=True).pow(2)
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(variance.clamp(min=0) + 0.01)


def in_float32(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        positions = torch.arange(LENGTH, dtype=torch.float32)
        return turned(x, torch.outer(positions, frequencies()))


def few_positions(x: torch.Tensor) -> torch.Tensor:
    """Integers up to 256 are exact, and whole radians of them, too."""
    positions = (torch.arange(LENGTH) // 2).to(x.dtype)
    return turned(x, positions[:, None] * torch.ones(WIDTH, dtype=torch.bfloat16))


def of_attention(x: torch.Tensor) -> torch.Tensor:
    scores = functional.softmax(x @ x.transpose(-1, -2) / 4, dim=-1)
    x = functional.layer_norm(functional.gelu(scores @ x), (WIDTH,))
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    weight = torch.exp(x - x.amax(-1, keepdim=True))
    return x + weight / weight.sum(-1, keepdim=True)


def with_a_mask_and_a_bias(x: torch.Tensor) -> torch.Tensor:
    scores = x @ x.transpose(-1, -2) / 4
    distance = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).abs()
    scores = scores + (distance * -0.5).to(x.dtype)
    return functional.softmax(scores + (distance > 100).to(x.dtype) * -100, dim=-1) @ x


class Network(torch.nn.Module):
    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step
        self.first, self.last = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.last(self.step(self.first(x)))
        return made


def trained(folder: Path, step: Step, steps: int = 20) -> Any:
    torch.manual_seed(0)
    model = Network(step)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(folder, model, optimizer) as seen:
        for _ in range(steps):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(torch.randn(2, LENGTH, WIDTH)).float().square().mean()
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    assert [] == seen.events("probe.failed")
    return seen


@pytest.mark.parametrize(
    ("step", "text", "op", "positions"),
    [
        (created_in_half, "dtype=torch.bfloat16", "cos", True),
        (cast_like_the_activations, ".type_as(x)", "cos", True),
        (multiplied_as_matrices, " @ ", "cos", True),
        (variance_from_two_means, "variance = ", "rsqrt", False),
    ],
)
def test_it_names_the_line_where_half_precision_begins(
    step: Step, text: str, op: str, positions: bool, tmp_path: Path
) -> None:
    finding = trained(tmp_path, step).findings()[NAME]
    assert str(finding.caller).endswith(line_of(step, text))
    assert (op, positions, "bfloat16") == tuple(finding.evidence[name] for name in ("op", "positions", "dtype"))
    assert (1, 2) == (finding.first_step, finding.opened_step)


@pytest.mark.parametrize("step", [in_float32, few_positions, of_attention, with_a_mask_and_a_bias])
def test_float32_and_plain_roundings_are_silent(step: Step, tmp_path: Path) -> None:
    assert NAME not in trained(tmp_path, step).findings()


def test_a_change_in_the_middle_is_found_at_the_next_census(tmp_path: Path) -> None:
    calls = iter(range(100))
    seen = trained(tmp_path, lambda x: (created_in_half if next(calls) >= 10 else in_float32)(x), steps=80)
    assert 10 <= seen.findings()[NAME].first_step <= 64


def test_the_weights_stay_the_same_to_the_last_bit(tmp_path: Path) -> None:
    def weights() -> list[bytes]:
        torch.manual_seed(0)
        model = Network(created_in_half)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with watching(tmp_path, model, optimizer):
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.randn(2, LENGTH, WIDTH)).square().mean().backward()
                optimizer.step()
        return [weight.detach().numpy().tobytes() for weight in model.parameters()]

    watched = weights()
    torch.manual_seed(0)
    model = Network(created_in_half)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(2, LENGTH, WIDTH)).square().mean().backward()
        optimizer.step()
    assert watched == [weight.detach().numpy().tobytes() for weight in model.parameters()]


@pytest.mark.parametrize(("error", "fires"), [(0.0099, False), (0.01, True)])
def test_it_needs_one_percent(error: float, fires: bool) -> None:
    assert ({NAME} if fires else set()) == set(findings(goes_on(sensitive(census(on_gpu()), error))))


def test_it_reads_the_first_event_that_reaches_one_percent() -> None:
    finding = findings(sensitive(sensitive(warm(5), 0.006), 0.03, op="rsqrt", positions=False))[NAME]
    assert 0.03 == finding.evidence["error"]
    assert "rsqrt computes with numbers rounded to bfloat16, 3.0 % off" == finding.title


def test_the_words_have_the_measure_and_both_lines() -> None:
    finding = findings(sensitive(warm(5)))[NAME]
    assert "Positions are computed in bfloat16, 14 % off" == finding.title
    assert finding.cause.startswith(
        "From a cast at model.py:31 to cos at model.py:33, the program computes with numbers rounded to bfloat16."
        " Computed again in float32, the results differ by 14 % on average (root mean square)."
    )
    assert "torch.autocast(device_type, enabled=False):" in finding.fix
    assert "model.py:31" == finding.caller
