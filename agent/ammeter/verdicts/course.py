"""A run as it is compared with another: what it was given, and the course of some columns of its lowest rank.

Pure, and the same from journals and from what a collector holds. Of a run that was started again it is the first life:
the steps of later ones begin anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ammeter.block import Floats, Ints, View, measured
from ammeter.wire import Event, Hello

COLUMNS = (
    "loss",
    "val_loss",
    "step_seconds",
    "samples",
    "tokens",
    "low_precision_share",
    "device_allocated_bytes",
)


@dataclass(frozen=True)
class Curve:
    """One column where it was measured: steps ascending, each once."""

    steps: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    values: Floats = field(default_factory=lambda: np.zeros(0, np.float32))

    def __len__(self) -> int:
        return len(self.steps)

    def with_common(self, other: Curve) -> tuple[Ints, Floats, Floats]:
        """The steps that both have, and the values of each there."""
        steps, mine, theirs = np.intersect1d(self.steps, other.steps, assume_unique=True, return_indices=True)
        return steps, self.values[mine], other.values[theirs]


@dataclass(frozen=True)
class Course:
    """precision: the dtype below autocast, "float32" without it, None while unknown. over: whether it has ended."""

    name: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    world_size: int = 1
    precision: str | None = None
    last_step: int = -1
    over: bool = False
    curves: Mapping[str, Curve] = field(default_factory=dict)

    def curve(self, name: str) -> Curve:
        """One of COLUMNS; empty where it was never measured."""
        return self.curves.get(name, Curve())


class Reading:
    """A course in the making; add() takes the views of one stream in order."""

    def __init__(self) -> None:
        self.precision: str | None = None
        self.last_step = -1
        self.hello: Hello | None = None
        self._parts: dict[str, list[Curve]] = {name: [] for name in COLUMNS}
        self._logged: dict[str, dict[int, float]] = {name: {} for name in COLUMNS}

    def add(self, view: View) -> None:
        for _, frame in view.frames:
            if isinstance(frame, Hello):
                self.hello = frame
            elif isinstance(frame, Event):
                self.event(frame.name, frame.step, frame.data)
        if not len(view):
            return
        self.last_step = max(self.last_step, int(view.steps[-1]))
        if self.precision is None and view.schema.tensors:
            self.precision = "float32"
        for name, parts in self._parts.items():
            column = view.scalar(name)
            there = measured(column)
            if there.any():
                parts.append(Curve(view.steps[there], column[there].copy()))

    def event(self, name: str, step: int, data: Mapping[str, Any]) -> None:
        """What was said beside the rows: the precision, and values of steps whose rows had been written."""
        if name == "autocast.entered" and data.get("grad") is True:
            self.precision = str(data.get("dtype") or self.precision)
        elif name == "values.logged":
            for each, values in self._logged.items():
                value = data.get(each)
                if isinstance(value, int | float):
                    values[step] = float(value)

    def course(
        self,
        over: bool,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        world_size: int | None = None,
    ) -> Course:
        """What was read. The rest is as the hello has it, unless it is known from elsewhere."""
        hello = self.hello
        return Course(
            name=name if name is not None else hello.name if hello else "",
            config=config if config is not None else hello.config if hello else {},
            environment=environment if environment is not None else hello.environment if hello else {},
            world_size=world_size if world_size is not None else hello.world_size if hello else 1,
            precision=self.precision,
            last_step=self.last_step,
            over=over,
            curves={each: _curve(parts, self._logged[each]) for each, parts in self._parts.items()},
        )


def _curve(parts: Sequence[Curve], logged: Mapping[int, float]) -> Curve:
    """The rows' values; where run.log spoke of a step afterwards, its word stands."""
    steps = np.concatenate([*(part.steps for part in parts), np.array(list(logged), np.int64)])
    values = np.concatenate([*(part.values for part in parts), np.array(list(logged.values()), np.float32)])
    last = len(steps) - 1 - np.unique(steps[::-1], return_index=True)[1]
    return Curve(steps[last], values[last])
