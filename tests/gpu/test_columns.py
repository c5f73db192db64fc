"""What is read on the device is what float64 says of the same gradients on the host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ammeter.whatif.cells import count
from tests.agent.training import events, stream
from tests.gpu.programs import Program, train

BAD = (6, 14)

Numbers = npt.NDArray[np.float64]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_norms_and_statistics_are_those_of_float64(device: str, precision: str, tmp_path: Path) -> None:
    seen: list[list[Numbers]] = []

    def see(step: int, model: torch.nn.Module) -> None:
        seen.append(
            [parameter.grad.double().cpu().numpy() for parameter in model.parameters() if parameter.grad is not None]
        )

    program = Program(precision, clip=True)
    view, frames = stream(train(program, device, tmp_path, preset="full", see=see).run, tmp_path)
    assert [] == events(frames, "probe.failed")
    norms = [np.sqrt(sum((gradient**2).sum() for gradient in step)) for step in seen]
    np.testing.assert_allclose(view.scalar("grad_norm"), norms, rtol=1e-5)
    expected: dict[str, Callable[[Numbers], Any]] = {
        "grad.norm": lambda gradient: np.sqrt((gradient**2).sum()),
        "grad.absmax": lambda gradient: np.abs(gradient).max(),
        "grad.zeros": lambda gradient: (gradient == 0).sum(),
        "grad.nans": lambda gradient: np.isnan(gradient).sum(),
        "grad.infs": lambda gradient: np.isinf(gradient).sum(),
    }
    for stat, of in expected.items():
        found, wanted = view.stat(stat), np.array([[of(gradient) for gradient in step] for step in seen]).T
        read = ~np.isnan(found)
        assert read.any() or stat in ("grad.nans", "grad.infs"), stat
        np.testing.assert_allclose(found[read], wanted[read], rtol=1e-5, err_msg=stat)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_exponents_of_each_gradient_are_those_of_its_elements(device: str, precision: str, tmp_path: Path) -> None:
    seen: list[dict[str, npt.NDArray[np.float32]]] = []

    def see(step: int, model: torch.nn.Module) -> None:
        gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        seen.append(
            {name: gradient.detach().float().cpu().clone().numpy().reshape(-1) for name, gradient in gradients.items()}
        )

    _, frames = stream(train(Program(precision), device, tmp_path, preset="full", see=see).run, tmp_path)
    assert [] == events(frames, "probe.failed")
    written = [event for event in events(frames, "tensor.exponents") if event.data["of"] == "gradient"]
    assert written
    for event in written:
        for counted in event.data["tensors"]:
            gradient = seen[event.step][counted["tensor"]]
            (expected,) = count(gradient, [len(gradient)])
            assert expected._asdict() == {key: counted[key] for key in ("lowest", "counts", "zeros", "nonfinite")}
            assert float(np.abs(gradient).max()) == pytest.approx(counted["absmax"])


@pytest.mark.parametrize("fused", [False, True])
def test_skipped_steps_and_the_scale_are_seen(device: str, fused: bool, tmp_path: Path) -> None:
    program = Program(adamw={"fused": fused}, bad=BAD)
    view, frames = stream(train(program, device, tmp_path).run, tmp_path)
    assert [] == events(frames, "probe.failed")
    assert list(BAD) == [int(step) for step, found in zip(view.steps, view.scalar("found_inf"), strict=True) if found]
    assert list(BAD) == [int(step) for step, out in zip(view.steps, view.scalar("skipped"), strict=True) if out > 0]
    scale = view.scalar("scale")
    assert [0.5 * scale[bad] for bad in BAD] == [scale[bad + 1] for bad in BAD]
