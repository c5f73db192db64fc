"""Sharded optimizer: torch AMP skips steps on each rank by itself.

Each rank owns a part of the parameters and unscales and checks only the gradients of its part. If they overflow on one
rank, it skips and halves its scale, while the others step: scales and weights of the ranks part. Found: a scaler that
informs all ranks (ShardedGradScaler), so that all skip.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

REPAIRED = "--repaired" in sys.argv
dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)


class ShardedGradScaler(torch.amp.GradScaler):
    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        for found_inf in self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values():
            dist.all_reduce(found_inf)


rank, ranks = dist.get_rank(), dist.get_world_size()
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
parameters = list(model.parameters())
owned = parameters[:4] if rank == 0 else parameters[4:]
optimizer = torch.optim.SGD(owned, lr=1e-4)
scaler = (ShardedGradScaler if REPAIRED else torch.amp.GradScaler)("cpu", init_scale=2.0**16, growth_interval=20)
generator = torch.Generator().manual_seed(rank)
for step in range(150):
    x = torch.randn(64, 32, generator=generator)
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = (model(x).float() - x).square().sum()
    scaler.scale(loss).backward()
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= ranks
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        for index, parameter in enumerate(parameters):
            dist.broadcast(parameter, src=0 if index < 4 else 1)
    if step % 30 == 0:
        print(rank, step, loss.item(), scaler.get_scale(), flush=True)
dist.barrier()
dist.destroy_process_group()
