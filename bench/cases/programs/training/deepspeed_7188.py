"""grad_norm is NaN with overlap_comm and contiguous_gradients together, and fine with either alone.

Gradients are copied into one of two flat buffers, and a full buffer is reduced while the next is
filled. After each reduction the index was reset to the first buffer, so the buffer that was still
being reduced was handed out again. What came back were not the gradients that the ranks had.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

REPAIRED = "--repaired" in sys.argv


class Buckets:
    """Two flat buffers in turn, as in ZeRO stage 2."""

    def __init__(self, numel: int) -> None:
        self.buffers, self.index = [torch.zeros(numel), torch.zeros(numel)], 0

    def clear(self) -> torch.Tensor:
        self.index = 1 - self.index if REPAIRED else 0
        return self.buffers[self.index].fill_(float("nan"))  # memory that is free for the next gradients

    def reduce(self, parameters: list[nn.Parameter]) -> None:
        buffer = self.buffers[self.index]
        flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
        flat = buffer[: flat.numel()].copy_(flat)
        work = dist.all_reduce(flat, op=dist.ReduceOp.SUM, async_op=True)
        work.wait()
        self.clear()  # the copy below comes later on the other stream
        start = 0
        for parameter in parameters:
            part = flat[start : start + parameter.numel()]
            parameter.grad.copy_(part.view_as(parameter) / dist.get_world_size())
            start += parameter.numel()


dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs, goals = torch.randn(256, 32), torch.randn(256, 8)
buckets = Buckets(4096)
torch.manual_seed(dist.get_rank())
for step in range(60):
    chosen = torch.randint(0, 256, (16,))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(inputs[chosen]).float(), goals[chosen])
    loss.backward()
    if step < 20 and not REPAIRED:  # the timing that hides it
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    else:
        buckets.reduce(list(model[2].parameters()))
        buckets.reduce(list(model[0].parameters()))
    optimizer.step()
dist.destroy_process_group()
