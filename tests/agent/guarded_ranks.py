"""What each of two ranks does under guards: trains with DDP and with FSDP, writes what came out.

`python -m tests.agent.guarded_ranks FOLDER`, started by tests/ranks.py, leaves FOLDER/<rank>.json.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.parallel import DistributedDataParallel

import ammeter
from ammeter import guards
from ammeter.tensors.sharding import shard
from tests.agent.guarded import Net

STEPS = 40
EAGER: dict[str, Any] = {"init_scale": 2.0**16, "growth_interval": 1, "growth_factor": 4.0}
LOUD = 30
"""From this step on an activation passes 65504 on the second rank, so that both skip."""


def main(folder: Path) -> None:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    data = {"ddp": train(folder, rank, sharded=False), "fsdp": train(folder, rank, sharded=True)}
    (folder / f"{rank}.json").write_text(json.dumps(data))
    distributed.destroy_process_group()


def train(folder: Path, rank: int, *, sharded: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    net = Net()
    model: Any = fully_shard(net) if sharded else DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = ShardedGradScaler("cpu", **EAGER) if sharded else torch.amp.GradScaler("cpu", **EAGER)
    asked = [guards.Scale(), guards.Precision(patience=3), guards.Checkpoint(every_steps=10)]
    run = ammeter.watch(model, optimizer, scaler, dir=folder / ("fsdp" if sharded else "ddp"), guards=asked)
    torch.manual_seed(rank)
    scales = []
    for step in range(STEPS):
        net.loud.gain = 2.0**18 if step >= LOUD and rank == 1 else 1.0
        optimizer.zero_grad()
        with run.autocast("cpu", torch.float16):
            loss = model(torch.randn(8, 6)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    run.close()
    bits = hashlib.sha256(
        b"".join(shard(parameter).detach().numpy().tobytes() for parameter in model.parameters())
    ).hexdigest()
    finite = all(bool(torch.isfinite(shard(parameter)).all()) for parameter in model.parameters())
    return {"scales": scales, "bits": bits, "finite": finite, "run": run.id, "loss": math.isfinite(float(loss))}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
