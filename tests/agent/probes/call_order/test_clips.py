"""Clips of gradients that are still scaled are found, torch's own and those of the program."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.agent.healthy_programs.program import scaled_backward, scaler
from tests.agent.probes.call_order.mistakes import here, sgd
from tests.agent.training import Model, watching


@pytest.mark.parametrize("how", ["a list", "a generator", "by keyword", "the module's own"])
def test_clipping_the_values_of_scaled_gradients_is_told(how: str, tmp_path: Path) -> None:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(tmp_path, model, optimizer, scales) as seen:
        for _ in range(3):
            scaled_backward(model, optimizer, scales)
            if how == "a list":
                torch.nn.utils.clip_grad_value_(list(model.parameters()), 0.5)
            elif how == "a generator":
                torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
            elif how == "by keyword":
                torch.nn.utils.clip_grad_value_(parameters=model.parameters(), clip_value=0.5)
            else:
                torch.nn.utils.clip_grad.clip_grad_value_(model.parameters(), 0.5)
            scales.step(optimizer)
            scales.update()
    (event,) = seen.events("usage.clip_before_unscale")
    assert ["clip_before_unscale"] == list(seen.usage())
    assert (0, 0.5, 1024.0) == (event.step, event.data["clip_value"], event.data["scale"])


def normalized(model: torch.nn.Module) -> None:
    """A limit of the norm in the program's own words."""
    with torch.no_grad():
        flat = torch.nn.utils.parameters_to_vector(
            [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        )
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad /= flat.norm().clamp(min=1.0)


def test_a_clip_of_the_programs_own_in_some_steps_is_found_with_the_line_that_unscales(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, scales = Model(), scaler()
    optimizer, line = sgd(model), ""
    with watching(tmp_path, model, optimizer, scales) as seen:
        for step in range(64):
            scaled_backward(model, optimizer, scales)
            if step in (30, 45, 60):
                normalized(model)
            scales.unscale_(optimizer)
            line = here()
            scales.step(optimizer)
            scales.update()
    finding = seen.findings()["clip-before-unscale"]
    assert str(finding.caller).endswith(line)
    assert {"clip-before-unscale"} == set(seen.findings())
    assert (30, 30) == (finding.first_step, finding.opened_step)
