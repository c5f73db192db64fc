"""Several processes that train one model, each on its own batches: what torchrun starts."""

import io
import os
import sys
from typing import TextIO

from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


def join() -> tuple[int, int]:
    """This process's rank, and how many there are: 0 and 1 unless torchrun has started it."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        distributed.init_process_group()
    return int(os.environ.get("RANK", "0")), ranks


def network(model: nn.Module) -> nn.Module:
    """What averages the gradients of all ranks in backward(); alone, the model itself."""
    return DistributedDataParallel(model) if distributed.is_initialized() else model


def stream(rank: int) -> TextIO:
    """Where a rank speaks: one of them is enough."""
    return sys.stdout if rank == 0 else io.StringIO()


def leave() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()
