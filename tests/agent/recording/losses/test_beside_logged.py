"""Named losses are recorded however many values the program logs beside them."""

from __future__ import annotations

from pathlib import Path

import torch

import ammeter
from tests.agent.training import stream


def test_named_losses_are_recorded_beside_many_logged_values(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    for _ in range(3):
        optimizer.zero_grad()
        run.log(**{f"value_{number}": float(number) for number in range(40)})
        model(torch.ones(8, 4)).square().mean().backward()
        model(torch.zeros(8, 4)).square().mean().backward()
        optimizer.step()
    run.close()
    view = stream(run.id, tmp_path)[0]
    losses = [name for name in view.schema.scalars if name.startswith("loss@")]
    assert 2 == len(losses)
    assert "value_39" in view.schema.scalars
    assert all((view.scalar(name) > 0).all() for name in losses)
