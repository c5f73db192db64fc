"""What the tests of mistakes share: a short program, and how a mistake is reported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from tests.agent.training import Seen


def here(back: int = 1) -> str:
    """The line `back` lines above the caller's."""
    frame = sys._getframe(1)
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno - back}"


def scaler(scale: float = 2.0**10, **options: Any) -> Any:
    return torch.amp.GradScaler("cpu", init_scale=scale, **options)


def sgd(model: torch.nn.Module, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), **{"lr": 1e-4, **options})


def loss_of(model: Any, dtype: torch.dtype | None = torch.float16) -> Any:
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        output = model(torch.randn(8, 12))
    return output.float().square().mean()


def told(seen: Seen, kind: str, step: int, line: str, **data: Any) -> None:
    """That this mistake and no other was told, once, in this step."""
    usage = seen.usage()
    assert [kind] == list(usage), usage
    (event,) = seen.events(f"usage.{kind}")
    caller = event.data["caller"]
    assert caller.endswith(line), f"{caller} is not {line}"
    assert data == {key: event.data[key] for key in data}
    assert step == event.step
