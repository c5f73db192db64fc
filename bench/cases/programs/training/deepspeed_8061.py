"""The loss is NaN from step 1 on with overlap_comm and torch.compile; the local gradients are fine.

Backward hooks copy gradients into the bucket on several streams, and the reduction waited for the
current one only: it read a bucket into which some gradients had not been copied yet. Waiting for
the streams of all copies fixed it, and so did overlap_comm=false.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

REPAIRED = "--repaired" in sys.argv


class Bucket:
    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters, self.pending = parameters, []
        self.memory = torch.empty(sum(parameter.numel() for parameter in parameters))
        start = 0
        for number, parameter in enumerate(parameters):
            view = self.memory[start : start + parameter.numel()].view_as(parameter)
            parameter.register_post_accumulate_grad_hook(self.copying(view, stream=number % 2))
            start += parameter.numel()

    def copying(self, view: torch.Tensor, stream: int):
        def copy(parameter: nn.Parameter) -> None:
            if stream == 0:
                view.copy_(parameter.grad)
            else:
                self.pending.append((view, parameter))  # another stream gets to it later

        return copy

    def wait(self) -> None:
        for view, parameter in self.pending:
            view.copy_(parameter.grad)
        self.pending.clear()

    def reduce(self) -> None:
        if REPAIRED:
            self.wait()
        dist.all_reduce(self.memory)
        start = 0
        for parameter in self.parameters:
            parameter.grad.copy_(self.memory[start : start + parameter.numel()].view_as(parameter))
            parameter.grad /= dist.get_world_size()
            start += parameter.numel()
        self.wait()
        self.memory.fill_(float("nan"))  # the bucket's memory serves others between two steps


dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
bucket = Bucket(list(model.parameters()))
inputs, goals = torch.randn(256, 32), torch.randn(256, 8)
torch.manual_seed(dist.get_rank())
for _ in range(60):
    chosen = torch.randint(0, 256, (16,))
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs[chosen]), goals[chosen])
    loss.backward()
    bucket.reduce()
    optimizer.step()
dist.destroy_process_group()
