"""Short programs of README.md, docs/guards.md, docs/report.md and docs/preflight.md, with the names they assume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.__main__ import main
from ammeter.recorded.recorded_run import load
from tests.docs.blocks import blocks
from tests.house import tree

DOCS = tree.ROOT / "docs"
BEFORE = """
import torch


class GPT(torch.nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.embedding = torch.nn.Embedding(50_000, 8)
        self.blocks = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(depth)))

    def forward(self, tokens):
        return self.blocks(self.embedding(tokens[:, :4]))


def next_token_loss(logits, tokens):
    return logits.float().square().mean()


"""
"""What the module of docs/preflight.md has beside its factory."""


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a program has when it calls watch()."""
    monkeypatch.setenv("AMMETER_DIR", str(tmp_path))
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    return {"model": model, "optimizer": optimizer, "scaler": torch.amp.GradScaler("cpu"), "val_loss": 0.5}


@pytest.mark.parametrize("page", ["README.md", "docs/guards.md", "docs/report.md"])
def test_the_line_of_the_page_watches_the_model(page: str, names: dict[str, Any], tmp_path: Path) -> None:
    (block,) = blocks(tree.ROOT / page, "python")
    exec(compile(f"import ammeter\n{block.text}", str(block), "exec"), names)
    scaler = names["scaler"]
    scaler.scale(names["model"](torch.ones(2, 4)).sum()).backward()
    scaler.step(names["optimizer"])
    scaler.update()
    names["run"].close()
    assert 1 == load(tmp_path / names["run"].id).rows


def test_the_factory_of_the_preflight_can_be_stressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (program,), (command, *_) = blocks(DOCS / "preflight.md", "python"), blocks(DOCS / "preflight.md", "sh")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(BEFORE + program.text)
    monkeypatch.chdir(tmp_path)
    assert "ammeter stress src/train.py:make_model\n" == command.text
    assert main([*command.text.split()[1:], "--json"]) in (0, 1)
    assert json.loads(capfd.readouterr().out)
