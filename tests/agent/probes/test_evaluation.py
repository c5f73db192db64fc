"""Outputs in evaluation are read: NaN with its module, NaN by design not, and the program is left as it is."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.wire.frames import Event
from tests.agent.training import Seen, watching

NAME = "nonfinite-validation"


class Act(torch.nn.Module):
    """An activation that a test may break in evaluation alone."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu() if self.training or self.limit else x.relu() / self.limit


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = torch.nn.Linear(6, 8), Act(), torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.act(self.first(x)))


def trained(
    folder: Path,
    model: torch.nn.Module,
    evaluate: Callable[[int], None],
    *,
    steps: int = 120,
    loss_of: Callable[[Any], torch.Tensor] = lambda output: output.square().mean(),
) -> Seen:
    torch.manual_seed(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(folder, model, optimizer, None) as seen:
        for step in range(steps):
            optimizer.zero_grad()
            loss: Any = loss_of(model(torch.randn(16, 6)))
            loss.backward()
            optimizer.step()
            if step % 20 == 19:
                evaluate(step)
    return seen


def evaluates(
    model: torch.nn.Module, change: Callable[[int], None], context: Any = torch.no_grad
) -> Callable[[int], None]:
    """Two passes in evaluation, after a change of the model."""

    def evaluate(step: int) -> None:
        change(step)
        model.eval()
        with context():
            for _ in range(2):
                model(torch.randn(16, 6))
        model.train()

    return evaluate


def limit_of(model: Any, step: int, onset: int = 59) -> None:
    model.act.limit = 0.0 if step >= onset else 1.0


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_nan_in_eval_mode_is_found_with_its_module(context: Any, tmp_path: Path) -> None:
    model = Net()
    seen = trained(tmp_path, model, evaluates(model, lambda step: limit_of(model, step), context))
    finding = seen.findings()[NAME]
    assert [NAME] == list(seen.findings())
    assert ("act", 59) == (finding.module, finding.first_step)
    assert "all 2 outputs of the model contained NaN" in finding.cause


def test_an_evaluation_after_the_last_step_is_reported(tmp_path: Path) -> None:
    model = Net()
    seen = trained(tmp_path, model, evaluates(model, lambda step: limit_of(model, step, onset=119)))
    assert 119 == seen.findings()[NAME].first_step


def test_a_broken_running_average_leads(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))

    def poison(step: int) -> None:
        if step == 59:
            model.get_buffer("1.running_mean").fill_(math.nan)

    found = trained(tmp_path, model, evaluates(model, poison)).findings()
    assert {"poisoned-buffers", NAME} == set(found)
    assert found["poisoned-buffers"].first_step <= found[NAME].first_step + 5
    assert "1.running_mean, a buffer, contains NaN or Inf." in found[NAME].cause


class Power(torch.nn.Module):
    """The square of numbers of some hundreds, which float16 does not have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (500 * x) * (500 * x) * 1e-5


def test_half_precision_in_evaluation_alone_is_named_with_its_dtype(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), Power(), torch.nn.Linear(8, 3))

    def evaluate(_: int) -> None:
        kept = copy.deepcopy(model.state_dict())
        model.half().eval()
        with torch.no_grad():
            for _ in range(2):
                assert model(torch.randn(16, 6).half() * 10).isnan().any()
        model.float().train().load_state_dict(kept)

    finding = trained(tmp_path, model, evaluate, steps=60).findings()[NAME]
    assert "The weights were float16 in the evaluation and float32 in training" in finding.cause


class Returns(torch.nn.Module):
    """A model whose output a test chooses."""

    def __init__(self, output: Callable[[torch.Tensor, bool], Any]) -> None:
        super().__init__()
        self.layer, self.output = torch.nn.Linear(6, 3), output

    def forward(self, x: torch.Tensor) -> Any:
        return self.output(self.layer(x), self.training)


def nan_padded(y: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.arange(len(y))[:, None] < 4, math.nan, y)


BY_DESIGN: dict[str, Callable[[torch.Tensor, bool], Any]] = {
    "a mask of -Inf": lambda y, _: {"logits": y, "masked": torch.where(y > 0, y, -math.inf)},
    "infinite scores in evaluation": lambda y, training: {"logits": y if training else torch.where(y > 0, math.inf, y)},
    "padding with NaN in both modes": lambda y, _: {"logits": y, "padded": nan_padded(y)},
    "a metric of absent classes": lambda y, training: {
        "logits": y,
        "iou": y[0] * (1 if training else math.nan),
    },
    "a metric in evaluation alone": lambda y, training: {
        "logits": y,
        **({} if training else {"f1": y[0, 0] * math.nan}),
    },
    "a loss that is absent": lambda y, training: {"logits": y, "aux": y.mean() if training else y.sum() * math.nan},
}


@pytest.mark.parametrize("name", BY_DESIGN)
def test_nan_by_design_is_no_finding(name: str, tmp_path: Path) -> None:
    model = Returns(BY_DESIGN[name])
    seen = trained(tmp_path, model, evaluates(model, lambda _: None), loss_of=lambda out: out["logits"].square().mean())
    assert {} == seen.findings()
    assert [] == seen.events("probe.failed")


def test_a_loss_that_the_model_returns_is_read_for_inf_too(tmp_path: Path) -> None:
    model = Returns(lambda y, training: {"loss": y.square().mean() if training else y.sum() * math.inf, "logits": y})
    seen = trained(tmp_path, model, evaluates(model, lambda _: None), loss_of=lambda out: out["loss"])
    assert "all 2 losses of the model contained Inf" in seen.findings()[NAME].cause


def test_outputs_are_read_on_the_fast_path_and_finite_ones_are_reported_once(tmp_path: Path) -> None:
    model = Net()
    seen = trained(tmp_path, model, evaluates(model, lambda _: None), steps=400)
    (event,) = seen.events("evaluation.finite")
    assert 2 == event.data["read"]
    assert {} == seen.findings()


def test_outputs_and_hooks_are_left_as_they_are(tmp_path: Path) -> None:
    outputs: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    for watched in (True, False):
        torch.manual_seed(1)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model.act.limit = 0.0

        def run(model: Net = model, optimizer: Any = optimizer, kept: list[torch.Tensor] = outputs[watched]) -> None:
            for step in range(60):
                optimizer.zero_grad()
                model(torch.randn(16, 6)).square().mean().backward()
                optimizer.step()
                if step % 10 == 9:
                    model.eval()
                    with torch.inference_mode():
                        kept.append(model(torch.randn(16, 6)))
                    model.train()
            kept += [parameter.detach() for parameter in model.parameters()]

        if watched:
            with watching(tmp_path, model, optimizer, None) as seen:
                run()
            assert seen.events("evaluation.nonfinite")
        else:
            run()
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(outputs[True], outputs[False], strict=True))


def test_an_error_in_evaluation_removes_the_hooks(tmp_path: Path) -> None:
    model = Net()

    def evaluate(step: int) -> None:
        limit_of(model, step)
        model.eval()
        with torch.no_grad():
            model(torch.randn(16, 6))
            with pytest.raises(RuntimeError):
                model(torch.randn(16, 7))
        model.train()

    events: list[Event] = trained(tmp_path, model, evaluate).events("evaluation.nonfinite")
    assert events
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
