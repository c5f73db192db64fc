"""In the step after a bad gradient, the operator that makes it is named, and nothing stays behind."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from ammeter.probes.origin import gradient_origin
from ammeter.probes.origin.gradient_origin import MAX_ARMED_STEPS, GradientOrigin
from ammeter.probes.origin.graph import nodes, place
from ammeter.torch_hooks import patch
from ammeter.verdicts.causality import Explained, explain
from tests.agent.probes.origin import planted_kernels
from tests.agent.training import Model, watching

Activation = Callable[[torch.Tensor], torch.Tensor]


class Half(torch.nn.Module):
    """Two layers with an activation between them."""

    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.enter, self.leave = torch.nn.Linear(12, 20), torch.nn.Linear(20, 12)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.leave(self.activation(self.enter(x)))
        return output


def network(activation: Activation) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(Half(activation), torch.nn.Linear(12, 3))


def trains(folder: Path, activation: Activation, *, scale: float = 1024.0, steps: int = 8) -> tuple[Any, bytes]:
    """What a training with a scaler recorded, and its last weights."""
    model = network(activation)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-3), torch.amp.GradScaler("cpu", init_scale=scale)
    with watching(folder, model, optimizer, scaler) as seen:
        _train(model, optimizer, scaler, steps)
    return seen, _weights(model)


def _train(model: torch.nn.Module, optimizer: Any, scaler: Any, steps: int) -> None:
    batches = torch.Generator().manual_seed(1)
    for _ in range(steps):
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(8, 12, generator=batches)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def _weights(model: torch.nn.Module) -> bytes:
    return b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())


def causes(seen: Any) -> list[Explained]:
    return explain([("stream", finding) for finding in seen.findings().values()])


def of_graph(seen: Any) -> list[dict[str, Any]]:
    return [event.data for event in seen.events("origin.found") if event.data["confidence"] == "graph"]


def zero_root(x: torch.Tensor) -> torch.Tensor:
    return x + torch.sqrt((x - x).float()).to(x.dtype)


def test_an_undefined_derivative_is_named_with_operator_and_module(tmp_path: Path) -> None:
    seen, _ = trains(tmp_path, zero_root)
    (found,) = of_graph(seen)
    assert ("backward", "0", "SqrtBackward0") == (found["kind"], found["module"], found["op"])
    assert ("undefined", None) == (found["trial"], found["exact"])
    (cause,) = causes(seen)
    finding = cause.finding
    assert "nonfinite-gradient" == finding.verdict
    assert "In the backward pass, 0 (SqrtBackward0, float32) made the NaN or Inf" in finding.cause
    assert "it gives NaN or Inf in float64 as well" in finding.cause
    assert "torch.sqrt(x + eps)" in finding.fix
    assert ("undefined", "SqrtBackward0") == (finding.evidence["trial"], finding.evidence["op"])


def test_a_wrong_backward_kernel_is_the_one_cause_and_its_program_shows_it(tmp_path: Path) -> None:
    with planted_kernels.planted("silu_backward", planted_kernels.spoiled_kernel("silu_backward")):
        seen, _ = trains(tmp_path, functional.silu, steps=20)
    (cause,) = causes(seen)
    finding = cause.finding
    assert ("kernel-nan", "ticket", "0") == (finding.verdict, finding.severity, finding.module)
    assert finding.title.endswith("backward kernel of Silu makes NaN or Inf in 0")
    assert "nonfinite-gradient" in [consequence.verdict for consequence in cause.consequences]
    program = tmp_path / seen.run / finding.evidence["reproducer"]
    shown = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    assert 2 == shown.stdout.count("0 of them NaN or Inf")  # here, where nothing is planted
    assert len(program.read_text().splitlines()) < 35


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * math.nan


def test_a_function_of_the_program_is_named_and_its_kernel_is_not_accused(tmp_path: Path) -> None:
    seen, _ = trains(tmp_path, Own.apply, steps=20)
    (found,) = of_graph(seen)
    assert ("OwnBackward", "0") == (found["op"], found["module"])
    assert "trial" not in found
    assert "kernel-nan" not in seen.findings()
    assert "In the backward pass, 0 (OwnBackward" in seen.findings()["nonfinite-gradient"].cause


def test_a_scale_that_comes_down_is_an_overflow_and_no_finding(tmp_path: Path) -> None:
    seen, _ = trains(tmp_path, functional.gelu, scale=2.0**24, steps=30)
    assert {"range"} == {found["trial"] for found in of_graph(seen)}
    assert {} == seen.findings()


def test_the_weights_are_those_of_an_unwatched_training(tmp_path: Path) -> None:
    _, watched = trains(tmp_path, functional.gelu, scale=2.0**24, steps=30)
    model = network(functional.gelu)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    _train(model, torch.optim.SGD(model.parameters(), 1e-3), scaler, 30)
    assert _weights(model) == watched


def test_without_a_bad_step_no_graph_has_hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    armed: list[int] = []
    monkeypatch.setattr(GradientOrigin, "arm", lambda *_: armed.append(1))
    seen, _ = trains(tmp_path, functional.gelu, steps=30)
    assert {} == seen.findings()
    assert [] == armed


def test_a_scaler_that_keeps_skipping_arms_a_limited_number_of_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[int] = []

    def counted(*args: Any, **options: Any) -> Any:
        searched.append(1)
        return nodes.nodes_of(*args, **options)

    monkeypatch.setattr(gradient_origin, "nodes_of", counted)
    monkeypatch.setattr(gradient_origin, "_is_bad", lambda _: False)
    trains(tmp_path, zero_root, steps=MAX_ARMED_STEPS + 10)
    assert MAX_ARMED_STEPS == len(searched)


def test_nothing_stays_attached_and_the_graph_is_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[weakref.ref[Any]] = []
    make = place.Graph

    def noted(nodes: Any) -> Any:
        graph = make(nodes)
        graphs.append(weakref.ref(graph))
        return graph

    monkeypatch.setattr(place, "Graph", noted)
    before = patch.attached()
    trains(tmp_path, zero_root)
    gc.collect()
    assert before == patch.attached()
    assert len(graphs) > 1
    assert not [graph for graph in graphs if graph() is not None]


def test_bad_gradients_in_the_last_rows_of_a_run_leave_no_patch_behind(tmp_path: Path) -> None:
    """The fixture of all tests finds a patch of backward() that is left."""
    model, scaler = Model(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with watching(tmp_path, model, optimizer, scaler) as seen:
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(8, 12)).square().mean() * float("inf")).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.step()  # a row of its own, which is finished when the run has ended
    assert "gradients_not_unscaled" in seen.usage()
