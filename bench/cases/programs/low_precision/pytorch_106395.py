"""Training in bfloat16 is stable on 96 GPUs and not on 384.

The gradients are summed over the GPUs in bfloat16. The more of them there are, the more is rounded off in the sum.
After a good deal of debugging the authors found that reduce_dtype=None, which reduces in float32, makes it stable.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

REPAIRED = "--repaired" in sys.argv
dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)


def bf16_compress(_, bucket):
    """Reduces in bfloat16; torch has this hook only for NCCL."""
    short = bucket.buffer().bfloat16().div_(dist.get_world_size())
    future = dist.all_reduce(short, async_op=True).get_future()
    return future.then(lambda reduced: bucket.buffer().copy_(reduced.value()[0]))


model = nn.Sequential(nn.Embedding(128, 64), nn.Linear(64, 192), nn.SiLU(), nn.Linear(192, 128))
model = nn.parallel.DistributedDataParallel(model)
if not REPAIRED:
    model.register_comm_hook(None, bf16_compress)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(dist.get_rank())
for step in range(120):
    tokens = (torch.randint(128, (8, 1), generator=generator) + 5 * torch.arange(17)) % 128
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0 and dist.get_rank() == 0:
        print(step, loss.item())
dist.barrier()
dist.destroy_process_group()
