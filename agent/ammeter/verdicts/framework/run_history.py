"""The data of a run for a comparison: its settings, and curves of its lowest rank.

The functions are pure and give the same result for journals and for the data in a collector. The attempts of a
restarted run lie on one axis of steps, see placement.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ammeter.verdicts.framework.model_shape import Model, model_of
from ammeter.verdicts.framework.placement import LifeRecord, Place, place
from ammeter.wire.columns import Floats, Ints, View, measured
from ammeter.wire.frames import Event, Hello
from ammeter.wire.metric_directions import BETTER, DIRECTIONS, LOWER

COLUMNS = (
    "loss",
    "val_loss",
    "step_seconds",
    "samples",
    "tokens",
    "low_precision_share",
    "device_allocated_bytes",
)
"""Columns in which two runs are displayed side by side."""

COUNT_COLUMNS = ("applied", "skipped", "micro_batches")
"""Further columns that the comparison needs."""

EVENTS = (
    "autocast.entered",
    "values.logged",
    "weights.census",
    "optimizer.restored",
    "checkpoint.saved",
    "checkpoint.restored",
)
"""Events that a history uses in addition to rows."""

VALIDATION = {"val_loss": LOWER}
"""Metrics that are compared by default."""


MAX_COLUMN_PARTS = 512
"""Maximum number of separate parts of a column. A small array needs more memory than its numbers."""


@dataclass(frozen=True)
class Curve:
    """The measured values of one column; steps are ascending and unique."""

    steps: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    values: Floats = field(default_factory=lambda: np.zeros(0, np.float32))

    def __len__(self) -> int:
        return len(self.steps)

    def with_common(self, other: Curve) -> tuple[Ints, Floats, Floats]:
        """Returns the steps that both curves have, and the values of each there."""
        steps, mine, theirs = np.intersect1d(self.steps, other.steps, assume_unique=True, return_indices=True)
        return steps, self.values[mine], other.values[theirs]


@dataclass(frozen=True)
class Part:
    """One attempt of a run and its place on the axis of the run."""

    stream: str
    place: Place

    def on_axis(self, curve: Curve) -> Curve:
        """Converts the curve to steps of the run, without steps that a later attempt replaces."""
        steps = self.place.steps_of_run(curve.steps)
        return Curve(steps, curve.values[: len(steps)])


@dataclass(frozen=True)
class RunHistory:
    """A run as it is compared with another one.

    Attributes:
        precision: The dtype of autocast; without autocast the one that FSDP casts weights to, or that of the weights;
            None while unknown.
        over: Whether the run has ended.
        parts: The attempts of the run, from which the curves are built.
    """

    name: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    world_size: int = 1
    precision: str | None = None
    last_step: int = -1
    over: bool = False
    curves: Mapping[str, Curve] = field(default_factory=dict)
    tags: Mapping[str, Any] = field(default_factory=dict)
    model: Model | None = None
    parts: tuple[Part, ...] = ()

    def curve(self, name: str) -> Curve:
        """Returns a column; empty if it was never measured."""
        return self.curves.get(name, Curve())


class LifeReader:
    """Collects the data of one attempt; add() receives the views of one stream in order.

    Args:
        stream: Id of the stream.
        further: Additional columns, such as metrics that the run declares.
        columns: The columns of every history.
    """

    def __init__(
        self, stream: str = "", further: Iterable[str] = (), columns: Sequence[str] = (*COLUMNS, *COUNT_COLUMNS)
    ) -> None:
        self.stream = stream
        self.precision: str | None = None
        self.first_step = self.last_step = -1
        self.first_time = self.last_time = 0
        self.hello: Hello | None = None
        self.model: Model | None = None
        self.updates_before: int | None = None
        self.loaded: list[str] = []
        self.saved: dict[str, int] = {}
        self.names = tuple(dict.fromkeys((*columns, *further)))
        self._parts: dict[str, list[Curve]] = {name: [] for name in self.names}
        self._logged: dict[str, dict[int, float]] = {name: {} for name in self.names}

    def add(self, view: View) -> None:
        for _, frame in view.frames:
            if isinstance(frame, Hello):
                self.hello = frame
            elif isinstance(frame, Event):
                self.event(frame.name, frame.step, frame.data)
        if not len(view):
            return
        if self.first_step < 0:
            self.first_step, self.first_time = int(view.steps[0]), int(view.times[0])
        self.last_step, self.last_time = max(self.last_step, int(view.steps[-1])), int(view.times[-1])
        if self.model is None:
            self.model = model_of(view.schema)
            if self.model is not None and self.precision is None:
                self.precision = self.model.precision or "float32"
        for name, parts in self._parts.items():
            column = view.scalar(name)
            present = measured(column)
            if present.any():
                parts.append(Curve(view.steps[present], column[present].copy()))

    def compact(self) -> None:
        """Concatenates small parts, so that a long run needs no more memory than its numbers."""
        for name, parts in self._parts.items():
            if len(parts) >= MAX_COLUMN_PARTS:
                steps, values = (
                    np.concatenate([getattr(curve, part) for curve in parts]) for part in ("steps", "values")
                )
                self._parts[name] = [Curve(steps, values)]

    def event(self, name: str, step: int, data: Mapping[str, Any]) -> None:
        """Stores data of an event: precision, late values, saved and loaded checkpoints.

        Late values are those that run.log reported for steps whose rows had already been written.
        """
        if name == "autocast.entered" and data.get("grad") is True:
            self.precision = str(data.get("dtype") or self.precision)
        elif name == "values.logged":
            for metric, values in self._logged.items():
                value = data.get(metric)
                if isinstance(value, int | float):
                    values[step] = float(value)
        elif name in ("weights.census", "optimizer.restored"):
            self._count_updates(name, data.get("updates"))
            if self.precision is None and data.get("compute"):
                self.precision = str(data["compute"])
        elif name == "checkpoint.saved" and data.get("path"):
            behind = data.get("steps")
            self.saved[str(data["path"])] = behind if isinstance(behind, int) else step
        elif name == "checkpoint.restored" and data.get("path") and step == 0:
            self.loaded.append(str(data["path"]))

    def _count_updates(self, name: str, updates: Any) -> None:
        """Stores the optimizer's updates before this process's first step.

        A state that is loaded before that step replaces the earlier number.
        """
        if isinstance(updates, int) and updates >= 0 and (self.updates_before is None or name == "optimizer.restored"):
            self.updates_before = updates

    def record(self) -> LifeRecord:
        """Returns the data that determine this attempt's position on the axis of the run."""
        skipped = self.curve("skipped")
        return LifeRecord(
            self.first_step,
            self.last_step,
            self.first_time,
            self.last_time,
            self.updates_before,
            tuple(self.loaded),
            dict(self.saved),
            skipped.steps[skipped.values > 0],
        )

    def curve(self, name: str) -> Curve:
        """Returns one column by the attempt's own steps."""
        return _curve(self._parts.get(name, ()), self._logged.get(name, {}))

    def history(
        self,
        over: bool,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        world_size: int | None = None,
        tags: Mapping[str, Any] | None = None,
    ) -> RunHistory:
        """Returns the history of a run with this single attempt."""
        return join_lives([self], over, name, config, environment, world_size, tags)


def join_lives(
    lives: Sequence[LifeReader],
    over: bool,
    name: str | None = None,
    config: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    world_size: int | None = None,
    tags: Mapping[str, Any] | None = None,
) -> RunHistory:
    """Builds the history of a run from its attempts, in their order.

    Arguments that are not None override the values of the first hello.
    """
    hello = next((life.hello for life in lives if life.hello), None)
    parts, curves, end = _placed(lives)
    logged = [int(curve.steps[-1]) for curve in curves.values() if len(curve)]
    return RunHistory(
        name=name if name is not None else hello.name if hello else "",
        config=config if config is not None else hello.config if hello else {},
        environment=environment if environment is not None else hello.environment if hello else {},
        world_size=world_size if world_size is not None else hello.world_size if hello else 1,
        precision=next((life.precision for life in reversed(lives) if life.precision), None),
        last_step=max([end - 1, *logged]),
        over=over,
        curves=curves,
        tags=tags if tags is not None else hello.tags if hello else {},
        model=next((life.model for life in lives if life.model), None),
        parts=tuple(parts),
    )


def declared_metrics(tags: Mapping[str, Any]) -> dict[str, str]:
    """Metric -> `lower` or `higher`, from the tags; val_loss is always included."""
    directions = {str(key)[len(BETTER) :]: str(value) for key, value in tags.items() if str(key).startswith(BETTER)}
    return VALIDATION | {name: value for name, value in directions.items() if name and value in DIRECTIONS}


def _placed(lives: Sequence[LifeReader]) -> tuple[list[Part], dict[str, Curve], int]:
    """Places the attempts on the axis of the run.

    Returns:
        The attempts with their places, the columns by steps of the run, and the step after the last one.
    """
    parts: list[Part] = []
    curves: dict[str, Curve] = {}
    end = 0
    for life, axis_place in zip(lives, place([life.record() for life in lives]), strict=True):
        if axis_place is None:
            continue
        parts.append(Part(life.stream, axis_place))
        for name in life.names:
            own = life.curve(name)
            later = Curve(own.steps + axis_place.begin, own.values)
            curves[name] = _joined_at(curves.get(name, Curve()), axis_place.begin + life.first_step, later)
        end = axis_place.begin + life.last_step + 1
    if not parts and lives:  # only values from run.log; the rows of their steps are lost
        curves = {name: lives[0].curve(name) for name in lives[0].names}
    return parts, curves, end


def _joined_at(earlier: Curve, step: int, later: Curve) -> Curve:
    """Joins the earlier values before `step` with the later ones."""
    count = int(np.searchsorted(earlier.steps, step))
    steps, values = (earlier.steps[:count], later.steps), (earlier.values[:count], later.values)
    return Curve(np.concatenate(steps), np.concatenate(values)) if count else later


def _curve(parts: Sequence[Curve], logged: Mapping[int, float]) -> Curve:
    """Builds a curve from rows and run.log; values from run.log override those of rows."""
    steps = np.concatenate([np.zeros(0, np.int64), *(part.steps for part in parts), np.array(list(logged), np.int64)])
    values = np.concatenate(
        [np.zeros(0, np.float32), *(part.values for part in parts), np.array(list(logged.values()), np.float32)]
    )
    last = len(steps) - 1 - np.unique(steps[::-1], return_index=True)[1]
    return Curve(steps[last], values[last])
