"""Small networks and what a run tells of their fallbacks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from tests.agent.networks import Network


def linear(*widths: int, **options: Any) -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Linear(*pair, **options) for pair in pairwise(widths)))


def of(model: torch.nn.Module, width: int = 8, *, rows: int = 8) -> Callable[[], Network]:
    return lambda: Network(model, (torch.randn(rows, width),), {}, "0")


def fallbacks(told: Any) -> list[tuple[str, str, str]]:
    return [(data["op"], data["module"], data["reason"]) for data in told.of("kernel.fallback")]
