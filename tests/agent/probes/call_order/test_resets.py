"""Gradients that are not reset are reported with the line that uses them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.agent.healthy_programs.program import loss_of, scaler
from tests.agent.probes.call_order.mistakes import here, sgd, told
from tests.agent.training import Model, watching


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("clip", [False, True], ids=["bare", "clipped"])
def test_gradients_that_are_never_reset_are_told(precision: str, clip: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, scales = Model(), scaler(enabled=precision == "fp16")
    optimizer = sgd(model)
    with watching(tmp_path, model, optimizer, scales) as seen:
        for _ in range(6):
            scales.scale(loss_of(model, torch.float16 if precision == "fp16" else None)).backward()
            if clip:
                scales.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e3)
            scales.step(optimizer)
            scales.update()
    (event,) = seen.events("usage.gradients_not_reset")
    assert (1, "applied", "SGD") == (event.step, event.data["after"], event.data["optimizer"])
    assert ["gradients_not_reset"] == list(seen.usage())
    assert 0 < event.data["left"]


@pytest.mark.parametrize("clip", [False, True], ids=["bare", "clipped"])
@pytest.mark.parametrize("bad", [3, 11])
def test_gradients_that_are_kept_where_a_step_was_skipped_are_told(bad: int, clip: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(tmp_path, model, optimizer, scales) as seen:
        for step in range(bad + 5):
            before = scales.get_scale()
            scales.scale(loss_of(model) * (float("nan") if step == bad else 1)).backward()
            scales.unscale_(optimizer)
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scales.step(optimizer)
            line = here()
            scales.update()
            if scales.get_scale() >= before:
                optimizer.zero_grad()
    told(
        seen,
        "gradients_not_reset",
        bad + 1,
        line.rpartition(":")[0] + ":" + str(int(line.rpartition(":")[2]) - 3),
        after="skipped",
        left=float("inf"),
    )


@pytest.mark.parametrize("reset", ["never", "before the step"])
def test_gradients_that_a_closure_does_not_reset_are_told(reset: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = torch.nn.Linear(12, 1), torch.randn(16, 12)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def closure() -> torch.Tensor:
        loss: torch.Tensor = (model(x) - x.sum(1, keepdim=True)).square().mean()
        torch.autograd.backward(loss)
        return loss

    with watching(tmp_path, model, optimizer) as seen:
        for _ in range(4):
            if reset == "before the step":
                optimizer.zero_grad()
            optimizer.step(closure)  # type: ignore[no-untyped-call]
    (event,) = seen.events("usage.gradients_not_reset")
    assert (0, "applied", "LBFGS") == (event.step, event.data["after"], event.data["optimizer"])
    assert "at the beginning of the closure: LBFGS" in seen.findings()["gradients-not-reset"].fix


def test_gradients_of_a_gan_that_are_never_reset_are_told(tmp_path: Path) -> None:
    maker, judge, scales = torch.nn.Linear(6, 12), Model(), scaler()
    makes, judges = sgd(maker), sgd(judge)
    with watching(tmp_path, [maker, judge], [makes, judges], scales) as seen:
        for step in range(40):
            if step < 30:
                judges.zero_grad()
            scales.scale(loss_of(judge)).backward()
            scales.step(judges)
            makes.zero_grad()
            scales.scale(judge(maker(torch.randn(8, 6))).mean()).backward()
            scales.step(makes)
            scales.update()
    (event,) = seen.events("usage.gradients_not_reset")
    assert 30 <= event.step <= 32
    assert {"gradients_not_reset", "mixed_scale"} == set(seen.usage())  # what the other half left was scaled before
