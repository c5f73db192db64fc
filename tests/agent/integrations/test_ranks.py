"""Each rank of a distributed training is watched, in one run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ammeter import journal
from ammeter.wire.frames import Steps
from tests import ranks
from tests.agent.integrations.trained import runs
from tests.house.tree import ROOT
from tests.parts import library

for name in ("transformers", "lightning.pytorch", "accelerate"):
    library(name)

pytestmark = pytest.mark.long

BEGIN = """
import warnings
import torch
from tests.agent.integrations.trained import BATCH, STEPS, Network, batches, samples

warnings.simplefilter("ignore")
torch.set_num_threads(1)
"""

PROGRAMS = {
    "transformers": """
import transformers
from ammeter.integrations.huggingface import AmmeterCallback

arguments = transformers.TrainingArguments(
    "out", max_steps=STEPS, per_device_train_batch_size=BATCH, use_cpu=True, bf16=True, save_strategy="no",
    report_to=[], disable_tqdm=True,
)
transformers.Trainer(Network(), arguments, train_dataset=samples(), callbacks=[AmmeterCallback()]).train()
""",
    "lightning": """
import lightning.pytorch as pl
from ammeter.integrations.lightning import AmmeterCallback


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = Network()

    def training_step(self, batch, _):
        return self.network(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


pl.Trainer(
    max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, callbacks=[AmmeterCallback()],
).fit(Module(), batches())
""",
    "accelerate": """
from accelerate import Accelerator
from ammeter.integrations.accelerate import AmmeterTracker

accelerator = Accelerator(cpu=True, mixed_precision="bf16", log_with=[AmmeterTracker()])
accelerator.init_trackers("project")
network = Network()
model, optimizer, loader = accelerator.prepare(
    network, torch.optim.AdamW(network.parameters(), lr=1e-3), batches(2 * BATCH * STEPS)
)
for batch in loader:
    accelerator.backward(model(**batch)["loss"])
    optimizer.step()
    optimizer.zero_grad()
accelerator.end_training()
""",
}


@pytest.mark.parametrize("framework", PROGRAMS)
def test_both_ranks_record_all_steps(framework: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BEGIN + PROGRAMS[framework])
    environment = {**ranks.without_settings(), "AMMETER_DIR": str(tmp_path / "runs"), "PYTHONPATH": str(ROOT)}
    ranks.run([sys.executable, tmp_path / "train.py"], 2, timeout=120, env=environment, cwd=tmp_path)
    (run,) = runs(tmp_path / "runs")
    steps = [
        [entry.frame.step for entry in journal.read(stream) if isinstance(entry.frame, Steps)]
        for stream in journal.streams(tmp_path / "runs" / run)
    ]
    assert 2 * [list(range(24))] == steps
