"""Several processes that torchrun starts train one model, each on its own batches."""

import os
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


def setup(device_type: str) -> tuple[int, int]:
    """Joins the processes of torchrun. Returns the rank and the number of ranks: 0 and 1 without torchrun."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        if device_type == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # else every rank computes on the first GPU
        distributed.init_process_group()
    return int(os.environ.get("RANK", "0")), ranks


def wrap(model: nn.Module) -> nn.Module:
    """A network whose backward() averages gradients over all ranks; one rank alone gets the model itself."""
    return DistributedDataParallel(model) if distributed.is_initialized() else model


def sync_gradients(network: nn.Module, enabled: bool) -> AbstractContextManager[None]:
    """Averages gradients in each backward() inside, or leaves them as they are on each rank."""
    if enabled or not isinstance(network, DistributedDataParallel):
        return nullcontext()
    return network.no_sync()


def cleanup() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()
