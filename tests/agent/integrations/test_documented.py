"""The programs in docs/integrations.md run as they are printed there, and are recorded."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.integrations import own_scalers, test_lightning, torchtitan_interface
from tests.agent.integrations.trained import BATCH, STEPS, Network, Recorded, batches, samples
from tests.house.tree import ROOT
from tests.parts import library

transformers = library("transformers")

pytestmark = test_lightning.pytestmark


def programs() -> dict[str, str]:
    """Heading -> program below it."""
    sections = re.split(r"^## ", (ROOT / "docs" / "integrations.md").read_text(), flags=re.MULTILINE)
    blocks = {
        part.partition("\n")[0]: re.findall(r"^```python\n(.*?)^```", part, re.DOTALL | re.M) for part in sections
    }
    return {heading: found[0] for heading, found in blocks.items() if found}


class Engine:
    """The parts of DeepSpeed's engine that the program uses."""

    def __init__(self) -> None:
        self.module, self.optimizer = own_scalers.training(own_scalers.LikeDeepSpeed(1024.0))

    def __call__(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        return self.module(x.half(), labels)

    def backward(self, loss: torch.Tensor) -> None:
        self.optimizer.backward(loss)

    def step(self) -> None:
        self.optimizer.step()


def names(folder: Path) -> dict[str, Any]:
    """What the programs have from their readers."""
    network = Network()
    return {
        "engine": Engine(),
        "model": network,
        "optimizer": torch.optim.AdamW(network.parameters(), lr=1e-3),
        "data": samples(),
        "held_out": samples(8),
        "train_loader": batches(),
        "val_loader": batches(8),
        "config": torchtitan_interface.Config(),
        "module": test_lightning.Module(),
        "arguments": transformers.TrainingArguments(
            str(folder / "out"), max_steps=STEPS, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no",
            eval_strategy="steps", eval_steps=8, per_device_train_batch_size=BATCH,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("heading", programs())
def test_the_program_runs_and_is_recorded(heading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torchtitan_interface.install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AMMETER_DIR", str(tmp_path / "runs"))
    (tmp_path / "program.py").write_text(programs()[heading])
    runpy.run_path(str(tmp_path / "program.py"), names(tmp_path))
    recorded = Recorded(tmp_path / "runs")
    assert STEPS == len(recorded.rows.steps)
    assert STEPS - 1 in recorded.logged("val_loss")


def test_each_integration_has_a_program() -> None:
    folder = ROOT / "agent" / "ammeter" / "integrations"
    shared = {"__init__", "framework_run", "loaded", "optimizer_chain"}
    integrations = {path.stem for path in folder.glob("*.py")} - shared
    imported = {name for text in programs().values() for name in re.findall(r"from ammeter\.integrations\.(\w+)", text)}
    assert integrations == imported
