"""A program whose gradients jump has a finding, and one with noisy batches has none."""

from __future__ import annotations

from pathlib import Path

import torch

from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import findings
from tests.agent.training import stream as journal_of
from tests.agent.training import watching


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
