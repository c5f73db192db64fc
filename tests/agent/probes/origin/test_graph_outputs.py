"""What casts, views and sums of finite numbers return is known without being saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ammeter.probes.origin.graph import culprit as graph_culprit


def _origin_of(loss: torch.Tensor, model: torch.nn.Module) -> dict[str, Any]:
    names = {id(weight): name for name, weight in model.named_parameters()}
    found = graph_culprit.find_origin(loss, lambda tensor: names.get(id(tensor), ""), lambda path: True)
    assert found is not None
    return found


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_target_is_named_and_not_the_cast_of_the_output(dtype: torch.dtype, residual: bool, bad: float) -> None:
    torch.manual_seed(0)
    model, target = torch.nn.Linear(4, 4), torch.randn(5, 4)
    target[3] = bad
    x = torch.randn(5, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=dtype):
        output = model(x) + x.to(dtype) if residual else model(x)
    found = _origin_of((output.float() - target).square().mean(), model)
    assert ("SubBackward0", "constant", False) == (found["op"], found["reason"], found["made_inside"])


def test_a_cast_that_overflows_is_still_named() -> None:
    model = torch.nn.Linear(4, 4)
    hidden = model(1e6 * torch.randn(5, 4, requires_grad=True)).half()
    found = _origin_of((hidden.float() - torch.randn(5, 4)).square().mean(), model)
    assert "ToCopyBackward0" == found["op"]


@pytest.mark.parametrize("model", [torch.nn.Linear(4, 4), torch.nn.Conv1d(4, 4, 1)], ids=["linear", "convolution"])
def test_a_batch_that_no_operator_made_is_among_the_inputs(model: torch.nn.Module) -> None:
    batch = torch.full((5, 4, 1) if isinstance(model, torch.nn.Conv1d) else (5, 4), 60000.0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(0.5)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(batch).float().square().mean()
    found = _origin_of(loss, model)
    assert (60000.0, "forward") == (found["absmax"], found["kind"])
