"""A program whose gradients jump has a finding, and one with noisy batches has none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import findings
from tests.agent.training import stream as journal_of
from tests.agent.training import watching
from tests.agent.verdicts.dynamics.test_gradient_spike import judged, noisy


def fitted(folder: Path, mistaken: float) -> dict[str, Finding]:
    """A small regression whose loss is multiplied by `mistaken` in five steps."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.SiLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
    with watching(folder, model, optimizer, budget=1) as seen:
        for step in range(160):
            x = torch.randn(4, 6)
            loss = (model(x)[:, 0] - x.sum(1) - torch.randn(4)).square().mean()
            optimizer.zero_grad()
            (loss * (mistaken if 140 <= step < 145 else 1)).backward()
            optimizer.step()
    stream = Stream()
    stream.frames = journal_of(seen.run, folder)[1]
    return findings(stream)


def test_a_program_whose_gradients_jump_is_told_and_one_with_batches_of_four_is_not(tmp_path: Path) -> None:
    finding = fitted(tmp_path / "broken", mistaken=3000.0)["gradient-spike"]
    assert 140 <= finding.first_step <= 142
    assert {} == fitted(tmp_path / "sound", mistaken=1.0)


def test_gradients_that_a_tiny_loss_scale_rounds_to_zero_name_the_scale() -> None:
    norms = noisy(np.random.default_rng(0), 100)
    norms[85:] = 0.0
    tiny, usual = judged(norms, scale=2.0**-31), judged(norms, scale=2.0**16)
    assert tiny
    assert usual
    assert "is 0, where it had been" in usual.cause
    assert "loss scale" not in usual.cause + usual.fix
    assert tiny.cause.endswith("The loss scale was 4.66e-10 then: gradients times this scale round to zero in float16.")
    assert tiny.fix.startswith("Set the loss scale to its first value again")
    assert (0.0, 2.0**-31) == (tiny.evidence["grad_norm"], tiny.evidence["loss_scale"])
