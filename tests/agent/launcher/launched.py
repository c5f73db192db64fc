"""What tests of `ammeter run` read from a launched program's journal."""

from __future__ import annotations

from typing import Any

from ammeter.wire.frames import Hello

STEPS = """
for _ in range(5):
    step()
    time.sleep(0.03)  # rows of shorter steps are written several at once
"""


def hello(frames: list[Any]) -> Hello:
    return [frame for frame in frames if isinstance(frame, Hello)][-1]


def tensors(frames: list[Any]) -> list[str]:
    return [tensor.name for tensor in hello(frames).schema.tensors]


MODEL = ["0.weight", "0.bias", "2.weight", "2.bias"]
