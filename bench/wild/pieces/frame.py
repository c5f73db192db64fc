"""What all generated programs begin with: imports, the data, and the build of model, optimizer and scaler."""

from __future__ import annotations

TOP = """
import contextlib
import copy
import hashlib
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed($seed)
$path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "last.pt")
$clock = [0]


def $digest(module):
    $sum = hashlib.sha256()
    for value in module.state_dict().values():
        $sum.update(value.detach().float().contiguous().numpy().tobytes())
    return $sum.hexdigest()
"""

DATA = """
def $batch($moment):
    time.sleep($pause)
    $gen = torch.Generator().manual_seed($data_seed + $moment)
    @inputs
    @data
    return $x, $y


def $criterion($out, $y):
    @criterion
"""

BUILD = """
$model = $Net()
@cast
@make_optimizer
@make_scaler
@make_schedule
@after_build
"""
