"""Which models the ranks of a distributed test train, and how they are wrapped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Model(torch.nn.Module):
    """Rows that no number of ranks divides, and fewer of them than there are ranks: shards are uneven, and empty."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.drop = drop
        self.first = torch.nn.Linear(12, 21)
        self.norm = torch.nn.LayerNorm(21)
        self.middle = torch.nn.Linear(21, 21)
        self.last = torch.nn.Linear(21, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.relu(self.norm(self.first(x)))
        logits: torch.Tensor = self.last(torch.nn.functional.dropout(self.middle(x), self.drop) + x)
        return logits


@dataclass(frozen=True)
class Plan:
    """One training. wrap: what makes the model a distributed one. accumulate: backward passes in a step.

    alike: how many neighbouring ranks are given the same samples. clip: whether torch can clip such gradients.
    """

    name: str
    wrap: Callable[[torch.nn.Module], torch.nn.Module]
    precision: str = "fp32"
    preset: str = "full"
    scaler: type[torch.amp.GradScaler] | None = None
    accumulate: int = 1
    replay: bool = False
    alike: int = 1
    clip: bool = True


def ddp(model: torch.nn.Module) -> torch.nn.Module:
    return DistributedDataParallel(model)


def ddp_of_views(model: torch.nn.Module) -> torch.nn.Module:
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


def ddp_of_a_static_graph(model: torch.nn.Module) -> torch.nn.Module:
    return DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)


def fsdp(model: torch.nn.Module, **more: Any) -> torch.nn.Module:
    for layer in (model.first, model.middle):
        fully_shard(layer, **more)  # type: ignore[arg-type]
    return fully_shard(model, **more)  # type: ignore[return-value]


def fsdp_of_halves(model: torch.nn.Module) -> torch.nn.Module:
    return fsdp(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


def hybrid(model: torch.nn.Module) -> torch.nn.Module:
    mesh = init_device_mesh("cpu", (2, distributed.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    return fsdp(model, mesh=mesh)


def tensor_parallel(model: torch.nn.Module, mesh: Any = None) -> torch.nn.Module:
    mesh = mesh or init_device_mesh("cpu", (distributed.get_world_size(),))
    first = ColwiseParallel(output_layouts=Replicate())
    middle = RowwiseParallel(input_layouts=Replicate())
    return parallelize_module(model, mesh, {"first": first, "middle": middle})


def across(model: torch.nn.Module) -> torch.nn.Module:
    """FSDP across pairs of ranks that share tensors; the norm and the last layer know of FSDP's mesh only."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
    return fsdp(tensor_parallel(model, mesh["tensor"]), mesh=mesh["data"])


def the_first_fsdp(model: torch.nn.Module) -> torch.nn.Module:
    return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))


PLANS = {
    "two": [
        Plan("ddp fp16", ddp, "fp16", "default", torch.amp.GradScaler, replay=True),
        Plan("ddp fp16 full", ddp_of_views, "fp16", "full", torch.amp.GradScaler, accumulate=2),
        Plan("ddp bf16", ddp_of_a_static_graph, "bf16", "default"),
        Plan("ddp bf16 full", ddp, "bf16", "full", accumulate=2),
        Plan("ddp fp32", ddp),
        Plan("fsdp fp16", fsdp, "fp16", "default", ShardedGradScaler, replay=True),
        Plan("fsdp fp16 full", fsdp, "fp16", "full", ShardedGradScaler, accumulate=2),
        Plan("fsdp bf16", fsdp_of_halves, "bf16", "default"),
        Plan("fsdp bf16 full", fsdp, "bf16", "full"),
        Plan("fsdp fp32", fsdp),
    ],
    "four": [
        Plan("fsdp fp32", fsdp),
        Plan("fsdp fp16 full", fsdp, "fp16", "full", ShardedGradScaler),
        Plan("hybrid", hybrid),
        Plan("tensor parallel", tensor_parallel, alike=4, clip=False),
        Plan("fsdp across tensor parallel", across, alike=2, clip=False),
        Plan("first fsdp", the_first_fsdp),
    ],
}
