"""Programs that create, restore and replace their scaler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.agent.healthy_programs.program import healthy, scaled_step, scaler, sgd
from tests.agent.training import Model, watching


@healthy
def a_run_that_is_resumed_with_its_scaler(folder: Path) -> Any:
    model, scales = Model(), scaler(65536.0 / 256)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        scaled_step(model, optimizer, scales)
    kept, counted, before = optimizer.state_dict(), scales.state_dict(), model.state_dict()
    model, scales = Model(), torch.amp.GradScaler("cpu")
    model.load_state_dict(before)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.load_state_dict(kept)
    scales.load_state_dict(counted)
    with watching(folder, model, optimizer, scales) as seen:
        for step in range(12):
            if step == 6:
                optimizer.load_state_dict(kept)
            scaled_step(model, optimizer, scales)
    return seen


@healthy
def a_fresh_scaler_for_pretrained_weights(folder: Path) -> Any:
    weights = Model().state_dict()
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        model.load_state_dict(weights)
        optimizer.load_state_dict(sgd(model).state_dict())
        for _ in range(5):
            scaled_step(model, optimizer, scales)
    return seen


@healthy
def a_scaler_of_each_epoch_that_is_given_the_state_of_the_last(folder: Path) -> Any:
    model = Model()
    optimizer, state = sgd(model), scaler().state_dict()
    with watching(folder, model, optimizer) as seen:
        for _ in range(3):
            scales = scaler()
            scales.load_state_dict(state)
            for _ in range(4):
                scaled_step(model, optimizer, scales)
            state = scales.state_dict()
    return seen
