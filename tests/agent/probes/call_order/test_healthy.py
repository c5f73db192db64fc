"""Healthy programs emit no usage event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.healthy_programs import HEALTHY, Program
from tests.agent.healthy_programs.program import loss_of, scaler
from tests.agent.training import Model, watching

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
"""torch warns of schedulers that start with a skipped step, and while it compiles."""


@pytest.mark.parametrize(
    "options", [{"fused": True}, {"foreach": True}, {"foreach": False}, {"capturable": False, "amsgrad": True}], ids=str
)
@pytest.mark.parametrize("skips", [False, True], ids=["applied", "skipped"])
def test_optimizers_of_every_make_emit_no_usage_event(options: dict[str, Any], skips: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, scales = Model(), scaler()
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    with watching(tmp_path, model, optimizer, scales) as seen:
        for step in range(12):
            optimizer.zero_grad(set_to_none=step % 3 > 0)
            scales.scale(loss_of(model) * (float("inf") if skips and step in (6, 7) else 1)).backward()
            if step % 2:
                scales.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scales.step(optimizer)
            scales.update()
    assert (2 if skips else 0) == len(seen.events("step.skipped"))
    assert {} == seen.usage()


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("program", HEALTHY, ids=lambda program: program.__name__.replace("_", " "))
def test_a_healthy_program_emits_no_usage_event(program: Program, seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    assert {} == program(tmp_path).usage()
