"""Finds in the graphs of losses the dtype in which they are computed."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.autograd.function import BackwardCFunction

from ammeter.probes.call_order.marks import nodes

MAX_NODES = 2048
"""Nodes behind a loss that are searched for half precision. Under autocast the search ends after a few."""

PRODUCTS = ("Addmm", "Mm", "Bmm", "Baddbmm", "Convolution", "Linear", "MkldnnLinear")
"""Nodes of operators that autocast runs in half precision on every device begin with these names."""


class Precision(NamedTuple):
    """The dtype in which losses are computed.

    Attributes:
        is_partly_hidden, is_mostly_hidden: whether parts of the graph show no dtype, and whether these are at least as
            many as the products that show one.
    """

    dtype: torch.dtype
    is_partly_hidden: bool
    is_mostly_hidden: bool


def of_losses(losses: list[torch.Tensor], *, any_half: bool) -> Precision | None:
    """Returns the dtype in which losses are computed: float16, bfloat16 or float32; None if it is hidden.

    Args:
        any_half: the search may end at the first of float16 and bfloat16.
    """
    dtype: torch.dtype | None = None
    hidden = products = 0
    is_cut = False
    for loss in losses:
        if loss.grad_fn is None:
            continue
        dtype, count = dtype or torch.float32, 0
        for node in nodes(loss.grad_fn, MAX_NODES):
            count += 1
            name, dtypes = node.name(), {metadata.dtype for metadata in getattr(node, "_input_metadata", ())}
            hidden += isinstance(node, BackwardCFunction) or "CompiledFunction" in name
            products += name.startswith(PRODUCTS)
            if torch.float16 in dtypes:
                return Precision(torch.float16, hidden > 0, 0 < hidden >= products)
            if torch.bfloat16 in dtypes:
                dtype = torch.bfloat16
                if any_half:
                    return Precision(dtype, hidden > 0, 0 < hidden >= products)
        is_cut = is_cut or (count >= MAX_NODES and dtype is torch.float32)
    is_hidden = is_cut or hidden > 0
    if dtype is None or (is_hidden and not products):
        return None
    return Precision(dtype, is_hidden, is_cut or 0 < hidden >= products)
