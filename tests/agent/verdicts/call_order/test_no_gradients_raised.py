"""no-gradients explains the errors of GradScaler and of backward() that end a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.training import Model, watching
from tests.agent.verdicts.call_order.test_no_gradients import NAME, backward, loss_of, sgd


def test_an_error_of_the_scaler_is_recognised_before_it_ends_the_run(tmp_path: Path) -> None:
    model = Model()
    optimizer, scaler = sgd(Model()), torch.amp.GradScaler("cpu", init_scale=2.0**8)
    with watching(tmp_path, model, optimizer, scaler) as seen:
        backward(scaler.scale(loss_of(model)))
        with pytest.raises(AssertionError, match="No inf checks"):
            scaler.step(optimizer)
    finding = seen.findings()[NAME]
    assert "other-parameters" == finding.evidence["reason"]
    assert "GradScaler then raises 'No inf checks were recorded for this optimizer'." in finding.cause


def test_an_error_of_the_scaler_in_a_later_step_is_recognised(tmp_path: Path) -> None:
    model = Model()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=2.0**8)
    with watching(tmp_path, model, optimizer, scaler) as seen:
        for step in range(12):
            optimizer.zero_grad()
            if step == 11:
                for parameter in model.parameters():
                    parameter.requires_grad_(False)
                extra = torch.nn.Parameter(torch.zeros(3))
                backward(scaler.scale(extra.sum()))
                with pytest.raises(AssertionError, match="No inf checks"):
                    scaler.step(optimizer)
                break
            with torch.autocast("cpu", torch.float16):
                loss = loss_of(model)
            backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
    assert set(seen.findings()) <= {NAME}


def test_an_optimizer_without_gradients_in_one_iteration_is_told_as_such_when_it_ends_the_run(tmp_path: Path) -> None:
    def train() -> None:
        models, scaler = [Model(), Model()], torch.amp.GradScaler("cpu", init_scale=2.0**8)
        optimizers = [sgd(model) for model in models]
        with watching(tmp_path, models, optimizers, scaler) as seen:
            seens.append(seen)
            for step in range(12):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                losses = [loss_of(model) for model in models]
                backward(scaler.scale(losses[0] if step == 11 else losses[0] + losses[1]))
                for optimizer in optimizers:
                    scaler.step(optimizer)
                scaler.update()

    seens: list[Any] = []
    with pytest.raises(AssertionError, match="No inf checks"):
        train()
    finding = seens[0].findings()[NAME]
    assert "not-now" == finding.evidence["reason"]
    assert "It had gradients in earlier ones, and other optimizers have some now." in finding.cause
    assert "only in an iteration in which one of its parameters has a gradient" in finding.fix


def test_a_loss_without_a_graph_is_recognised_when_it_ends_the_run(tmp_path: Path) -> None:
    def train() -> None:
        model = Model()
        with watching(tmp_path, model, sgd(model)) as seen:
            seens.append(seen)
            backward(loss_of(model).detach())

    seens: list[Any] = []
    with pytest.raises(RuntimeError, match="does not require grad"):
        train()
    finding = seens[0].findings()[NAME]
    assert "no-graph" == finding.evidence["reason"]
    assert "without a graph" in finding.cause
