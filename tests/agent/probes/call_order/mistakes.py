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


def sgd(model: torch.nn.Module, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), **{"lr": 1e-4, **options})


def told(seen: Seen, kind: str, step: int, line: str, **data: Any) -> None:
    """That this mistake and no other was told, once, in this step."""
    usage = seen.usage()
    assert [kind] == list(usage), usage
    (event,) = seen.events(f"usage.{kind}")
    caller = event.data["caller"]
    assert caller.endswith(line), f"{caller} is not {line}"
    assert data == {key: event.data[key] for key in data}
    assert step == event.step
