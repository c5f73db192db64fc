"""float16 is used for the all-reduce even if bfloat16 is enabled.

Unless the configuration also sets the dtype of the communication, the engine sends gradients as float16. The gradients
of a bfloat16 run need not fit there, and are rounded. Found: a communication dtype of its own, and later float32 as
its default.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

REPAIRED = "--repaired" in sys.argv
dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)


def allreduce_gradients(model, communication_data_type):
    for parameter in model.parameters():
        tensor = parameter.grad.to(communication_data_type).div_(dist.get_world_size())
        dist.all_reduce(tensor)
        parameter.grad.copy_(tensor)


model = nn.Sequential(nn.Linear(48, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(100 + dist.get_rank())
for step in range(120):
    x = torch.randn(32, 48, generator=generator)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x).float(), x[:, :10].argmax(1))
    loss.backward()
    allreduce_gradients(model, torch.float32 if REPAIRED else torch.float16)
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0 and dist.get_rank() == 0:
        print(step, loss.item())
dist.barrier()
dist.destroy_process_group()
