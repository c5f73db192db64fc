"""Watched training leaves the bits of bare training on the device, whatever the optimizer and however it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import ammeter
from tests.agent.training import Model, events, stream
from tests.gpu.programs import Program, state, train

PROGRAMS = {
    "fp16": Program(),
    "fp16, clipped": Program(clip=True),
    "fp16, bad steps": Program(bad=(4, 5, 17)),
    "fp16, fused": Program(adamw={"fused": True}),
    "fp16, fused, bad steps": Program(adamw={"fused": True}, bad=(4, 5, 17)),
    "bf16": Program("bf16"),
    "bf16, one tensor after the other": Program("bf16", adamw={"foreach": False}, clip=True),
    "bf16, fused": Program("bf16", adamw={"fused": True}),
}
ONLY_THERE = {
    "bf16, capturable": Program("bf16", adamw={"capturable": True}),
    "fp16, capturable, fused": Program(adamw={"capturable": True, "fused": True}),
}


def the_same(program: Program, device: str, folder: Path, preset: str) -> None:
    bare = train(program, device)
    assert bare.state == train(program, device).state, "bare training has other bits each time; nothing is to be learnt"
    watched = train(program, device, folder, preset=preset)
    assert [] == [name for name, bits in bare.state.items() if bits != watched.state[name]]
    view, frames = stream(watched.run, folder)
    assert [] == [event.data for event in events(frames, "probe.failed")]
    assert program.steps == len(view.steps)


@pytest.mark.parametrize("preset", ["default", "full"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_watched_training_has_the_bits_of_bare_training(device: str, name: str, preset: str, tmp_path: Path) -> None:
    the_same(PROGRAMS[name], device, tmp_path, preset)


@pytest.mark.parametrize("name", ONLY_THERE)
def test_watched_training_with_what_only_cuda_has_is_the_same(cuda: str, name: str, tmp_path: Path) -> None:
    the_same(ONLY_THERE[name], cuda, tmp_path, "default")


def test_a_compiled_model_keeps_its_bits_and_its_graphs(device: str, tmp_path: Path) -> None:
    program, compiled, left = Program(compiled=True), [], []
    for folder in (None, tmp_path):
        torch._dynamo.reset()
        counters.clear()
        left.append(train(program, device, folder).state)
        compiled.append(counters["stats"]["unique_graphs"])
    torch._dynamo.reset()
    assert left[0] == left[1]
    assert compiled[0] == compiled[1] > 0


def captured(folder: Path | None) -> dict[str, bytes]:
    """Forward, backward and the optimizer's step as one CUDA graph, replayed with new inputs."""
    torch.manual_seed(0)
    model: Any = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)
    run = ammeter.watch(model, optimizer, dir=folder) if folder else None
    inputs, batches = torch.zeros(8, 12, device="cuda"), torch.randn(20, 8, 12, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            loss = model(inputs).float().square().mean()
        loss.backward()
        optimizer.step()

    aside: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for batch in batches:
        inputs.copy_(batch)
        graph.replay()
    torch.cuda.synchronize()
    if run and folder:
        run.close()
        assert [] == events(stream(run.id, folder)[1], "probe.failed")
    return state(model, optimizer, None, "cuda")


def test_a_captured_step_is_captured_and_replayed_as_without_us(cuda: str, tmp_path: Path) -> None:
    bare = captured(None)
    assert bare == captured(None), "bare training has other bits each time; nothing is to be learnt"
    assert bare == captured(tmp_path)
