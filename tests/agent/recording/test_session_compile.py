"""torch.compile finds the same graphs, and as many graph breaks, whether the program is watched or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import ammeter
from tests.agent.training import events, stream

Body = Callable[[torch.nn.Module, Any, Any, Any], Callable[[torch.Tensor], None]]


pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "UserWarning")]
"""torch warns itself and its users while it compiles."""


@pytest.fixture(scope="module", autouse=True)
def _threads_of_the_compiler_are_there_already() -> None:
    function = torch.compile(lambda x: (x * x).sum(), backend="aot_eager")
    function(torch.ones(2, requires_grad=True)).backward()


@pytest.fixture(autouse=True)
def _compiler_begins_anew() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _model_compiled(model: torch.nn.Module, optimizer: Any, scaler: Any, compiled: Any) -> Callable[..., None]:
    forward = compiled(model)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        scaler.scale(forward(x).sum()).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return step


def _autocast_and_scale_compiled(model: torch.nn.Module, optimizer: Any, scaler: Any, compiled: Any) -> Any:
    @compiled  # type: ignore[untyped-decorator]
    def loss(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            found = model(x).float().sum()
        return scaler.scale(found)  # type: ignore[no-any-return]

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss(x).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def _optimizer_compiled(model: torch.nn.Module, optimizer: Any, scaler: Any, compiled: Any) -> Callable[..., None]:
    update = compiled(lambda: optimizer.step())

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        update()

    return step


def _whole_step_compiled(model: torch.nn.Module, optimizer: Any, scaler: Any, compiled: Any) -> Callable[..., None]:
    @compiled  # type: ignore[untyped-decorator]
    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step  # type: ignore[no-any-return]


def _train(body: Body, folder: Path | None, backend: str, **options: Any) -> tuple[Any, dict[str, int], str]:
    """(weights, what dynamo counted, run id) of four steps."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    run = ammeter.watch(model, optimizer, scaler, dir=folder) if folder else ammeter.Run()
    step = body(model, optimizer, scaler, lambda what: torch.compile(what, backend=backend, **options))
    try:
        for index in range(4):
            step(torch.ones(3, 4) * index)
    finally:
        run.close()
    counted = {
        "graphs": counters["stats"]["unique_graphs"],
        "calls in graphs": counters["stats"]["calls_captured"],
        "reasons for graph breaks": len(counters["graph_break"]),
    }
    return [parameter.tolist() for parameter in model.parameters()], counted, run.id


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "body", [_model_compiled, _autocast_and_scale_compiled, _optimizer_compiled, _whole_step_compiled]
)
def test_a_compiled_program_has_the_same_graphs_and_the_same_bits(body: Body, backend: str, tmp_path: Path) -> None:
    bare, bare_counts, _ = _train(body, None, backend)
    watched, counts, run = _train(body, tmp_path, backend)
    assert bare == watched
    assert (bare_counts["graphs"], bare_counts["calls in graphs"]) == (counts["graphs"], counts["calls in graphs"])
    assert counts["reasons for graph breaks"] <= bare_counts["reasons for graph breaks"]
    rows, frames = stream(run, tmp_path)
    assert [] == events(frames, "probe.failed")
    assert [0, 1, 2, 3] == rows.steps.tolist()
    assert [1.0] * 4 == rows.scalar("applied").tolist()


def test_a_clip_in_a_graph_without_breaks_stays_in_it(tmp_path: Path) -> None:
    def body(model: torch.nn.Module, optimizer: Any, scaler: Any, compiled: Any) -> Callable[..., None]:
        clip = compiled(lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1))

        def step(x: torch.Tensor) -> None:
            optimizer.zero_grad()
            model(x).sum().backward()
            clip()
            optimizer.step()

        return step

    bare = _train(body, None, "eager", fullgraph=True)
    watched = _train(body, tmp_path, "eager", fullgraph=True)
    assert bare[:2] == watched[:2]


@torch._dynamo.config.patch(error_on_recompile=True)  # type: ignore[untyped-decorator]
def test_a_model_is_not_compiled_again_because_it_is_watched(tmp_path: Path) -> None:
    for body in (_model_compiled, _autocast_and_scale_compiled):
        _train(body, tmp_path, "eager")
