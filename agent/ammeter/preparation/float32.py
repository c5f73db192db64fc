"""Switches mixed precision off in the process of a program: for the float32 run of `ammeter canary`, and no other."""

from __future__ import annotations

from functools import cache

import torch

from ammeter.torch_hooks import patch


@cache
def switch_off() -> None:
    """Makes every later torch.autocast and torch.amp.GradScaler one with enabled=False.

    The program's weights, casts of its own, and torch.set_autocast_enabled() stay as they are.
    """
    patch.switched_off(torch.autocast)
    patch.switched_off(torch.amp.GradScaler)
