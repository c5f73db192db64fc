"""`ammeter run` records what a training framework knows, without a line in the program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.agent.integrations.trained import Recorded
from tests.agent.launching import launch
from tests.house.tree import ROOT
from tests.parts import library

for name in ("transformers", "lightning.pytorch", "accelerate"):
    library(name)

pytestmark = pytest.mark.long

BEGIN = """
import sys, warnings
import torch
from tests.agent.integrations.trained import BATCH, STEPS, Network, batches, samples

warnings.simplefilter("ignore")
torch.set_num_threads(1)
network = Network()
loader = batches()
"""

TRANSFORMERS = """
import transformers

transformers.Trainer(
    model=network,
    args=transformers.TrainingArguments(
        "out", max_steps=STEPS, per_device_train_batch_size=BATCH, use_cpu=True, bf16=True, eval_strategy="steps",
        eval_steps=8, save_strategy="no", report_to=[], disable_tqdm=True, metric_for_best_model="loss", seed=7,
    ),
    train_dataset=samples(),
    eval_dataset=samples(8),
).train()
"""

LIGHTNING = """
import lightning.pytorch as pl


class Module(pl.LightningModule):
    def __init__(self, width=16):
        super().__init__()
        self.save_hyperparameters()
        self.network = network

    def training_step(self, batch, _):
        return self.network(**batch)["loss"]

    def validation_step(self, batch, _):
        self.log("val_loss", self.network(**batch)["loss"])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


pl.Trainer(
    max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    val_check_interval=8, precision="bf16-mixed",
).fit(Module(), loader, batches(8))
"""

FABRIC = """
from lightning.fabric import Fabric

fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
model, optimizer = fabric.setup(network, torch.optim.AdamW(network.parameters(), lr=1e-3))
for step, batch in enumerate(loader):
    optimizer.zero_grad()
    fabric.backward(model(**batch)["loss"])
    optimizer.step()
    if step % 8 == 7:
        fabric.log("val_loss", 0.5)
"""

ACCELERATE = """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True, mixed_precision="bf16")
model, optimizer = accelerator.prepare(network, torch.optim.AdamW(network.parameters(), lr=1e-3))
for step, batch in enumerate(loader):
    optimizer.zero_grad()
    accelerator.backward(model(**batch)["loss"])
    optimizer.step()
    if step % 8 == 7:
        accelerator.log({"val_loss": 0.5}, step=step)
"""

PROGRAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "transformers": (TRANSFORMERS, {"name": "transformers", "seed": 7, "resumed_at_step": 0}),
    "lightning": (LIGHTNING, {"name": "lightning.pytorch", "hparams": {"width": 16}, "accumulate_grad_batches": 1}),
    "pytorch_lightning": (
        LIGHTNING.replace("lightning.pytorch", "pytorch_lightning"),
        {"name": "pytorch_lightning", "hparams": {"width": 16}},
    ),
    "fabric": (FABRIC, {"name": "lightning.fabric", "precision": "bf16-mixed"}),
    "accelerate": (ACCELERATE, {"name": "accelerate", "mixed_precision": "bf16"}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_framework_knows_is_recorded(name: str, tmp_path: Path) -> None:
    body, settings = PROGRAMS[name]
    ended = launch(body, tmp_path, begin=BEGIN, options=["--tag", "team=a"], PYTHONPATH=str(ROOT)).end(120)
    assert 0 == ended.code, ended.err
    recorded = Recorded(ended.folder)
    assert list(range(24)) == recorded.rows.steps.tolist()
    assert settings == {key: recorded.settings.get(key) for key in settings}
    assert [7, 15, 23] == list(recorded.logged("val_loss"))
    assert "a" == recorded.hello.tags["team"]
    assert {} == recorded.findings()


def test_a_callback_of_the_program_is_the_only_run(tmp_path: Path) -> None:
    line = "from ammeter.integrations.huggingface import AmmeterCallback"
    body = TRANSFORMERS.replace("import transformers\n", f"import transformers\n{line}\n", 1)
    body = body.replace("eval_dataset=", "callbacks=[AmmeterCallback(name='own')], eval_dataset=")
    ended = launch(body, tmp_path, begin=BEGIN, options=["--tag", "team=a"], PYTHONPATH=str(ROOT)).end(120)
    assert 0 == ended.code, ended.err
    recorded = Recorded(ended.folder)
    assert ("own", "a", 24) == (recorded.hello.name, recorded.hello.tags["team"], len(recorded.rows.steps))
    assert 3 == len(recorded.logged("val_loss"))
