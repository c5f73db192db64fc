"""Two runs side by side: in what they were set up differently, and how one did against the other.

Pure. Everything is of the steps that both have, so a run can be compared while it goes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ammeter.block import Floats
from ammeter.verdicts.course import Course

_PRECISION = (
    "precision dtype torch_dtype amp amp_dtype use_amp autocast mixed_precision fp16 bf16 fp32 half tf32 scaler"
    " grad_scaler init_scale loss_scale growth_interval growth_factor backoff_factor"
)
PRECISION = frozenset(_PRECISION.split())
"""Names of settings that say in which precision a run trains: that is what is compared."""

_BESIDE = (
    "name run_name job_name id project group notes tags baseline output_dir out_dir save_dir log_dir logdir checkpoint"
    " resume steps max_steps epochs max_epochs num_epochs iterations"
)
BESIDE = frozenset(_BESIDE.split())
BESIDE_TOO = ("_every", "_freq")
"""Names of settings, and ends of such names, that say how a run is called, where it is kept, what is told of it and how
long it is: they change no step of it."""

SEEDS = frozenset(("seed", "random_seed", "manual_seed"))

ENVIRONMENT = ("torch", "device")

WARM_UP = 64
"""Steps that no speed is taken of: kernels are compiled and chosen, Ammeter reads densely. Of a short run a third."""

ENOUGH = 20
"""Steps behind them from which on a median is one."""

READINGS = 3
"""Of the memory, from which on their largest is a peak."""


@dataclass(frozen=True)
class Difference:
    """A setting that the two runs have not in common; None where one has it not at all."""

    key: str
    run: Any
    baseline: Any


@dataclass(frozen=True)
class Speed:
    """Median seconds of a step over the same steps of both, of a sample where they take other numbers of them.

    clear: whether three quarters of the run's steps are slower than the baseline's median.
    """

    run: float
    baseline: float
    per: str
    first: int
    last: int
    steps: int
    clear: bool

    @property
    def ratio(self) -> float:
        """How much longer the run takes."""
        return self.run / self.baseline


@dataclass(frozen=True)
class Memory:
    """The peaks of what tensors took on the device, in bytes."""

    run: float
    baseline: float
    first: int
    last: int

    @property
    def ratio(self) -> float:
        return self.run / self.baseline


@dataclass(frozen=True)
class Validation:
    """The validation losses at a step that both validated at."""

    step: int
    run: float
    baseline: float

    @property
    def delta(self) -> float:
        """By how much the run is worse, relative to the baseline; infinite when it is not finite."""
        if not math.isfinite(self.run):
            return math.inf
        return (self.run - self.baseline) / max(abs(self.baseline), 1e-12)


@dataclass(frozen=True)
class Pair:
    """A run, and the one that it is held against. ignored: settings that may differ. delta: see validation-drift."""

    run: Course
    baseline: Course
    ignored: frozenset[str] = frozenset()
    delta: float | None = None

    @cached_property
    def differences(self) -> list[Difference]:
        """The settings that differ and are not meant to, of the configs and of where they ran."""
        mine, theirs = (dict(_settings(each)) for each in (self.run, self.baseline))
        return [
            Difference(key, mine.get(key), theirs.get(key))
            for key in sorted({*mine, *theirs})
            if mine.get(key) != theirs.get(key)
            and not {key, _last(key)} & self.ignored
            and _last(key) not in PRECISION | BESIDE | SEEDS
            and not _last(key).endswith(BESIDE_TOO)
        ]

    @cached_property
    def seeds(self) -> tuple[Any, Any]:
        """Of both; None where the config has none."""
        mine, theirs = (
            next((value for key, value in _settings(each) if _last(key) in SEEDS), None)
            for each in (self.run, self.baseline)
        )
        return mine, theirs

    def as_json(self) -> dict[str, Any]:
        """Both in numbers; null for what cannot be said."""
        speed, memory = self.speed, self.memory
        last = self.validations[-1] if self.validations else None
        return {
            "name": self.baseline.name,
            "speedup": 1 / speed.ratio if speed else None,
            "per": speed.per if speed else None,
            "seconds": speed.run if speed else None,
            "baseline_seconds": speed.baseline if speed else None,
            "memory_ratio": memory.ratio if memory else None,
            "validation_delta": last.delta if last else None,
            "validation_step": last.step if last else None,
            "first_other_loss": self.parted[0] if self.parted else None,
            "differences": [vars(each) for each in self.differences],
        }

    @property
    def same_precision(self) -> bool:
        """Whether both train in one precision, as they ran and as they were told to."""
        mine, theirs = (
            {key: value for key, value in _settings(each) if _last(key) in PRECISION}
            for each in (self.run, self.baseline)
        )
        return self.run.precision == self.baseline.precision and mine == theirs

    @cached_property
    def speed(self) -> Speed | None:
        steps, mine, theirs = self.run.curve("step_seconds").with_common(self.baseline.curve("step_seconds"))
        usable = np.isfinite(mine) & np.isfinite(theirs) & (mine > 0) & (theirs > 0)
        steps, mine, theirs = steps[usable], mine[usable], theirs[usable]
        begin = min(WARM_UP, len(steps) // 3)
        steps, mine, theirs = steps[begin:], mine[begin:], theirs[begin:]
        if len(steps) < ENOUGH:
            return None
        samples, of_baseline = (_usual(each, "samples") for each in (self.run, self.baseline))
        apart = samples > 0 and of_baseline > 0 and abs(samples / of_baseline - 1) > 0.01
        by = (samples, of_baseline) if apart else (1.0, 1.0)
        median, quarter = float(np.median(mine)) / by[0], float(np.quantile(mine, 0.25)) / by[0]
        usual = float(np.median(theirs)) / by[1]
        per = "sample" if apart else "step"
        return Speed(median, usual, per, int(steps[0]), int(steps[-1]), len(steps), quarter > usual)

    @cached_property
    def memory(self) -> Memory | None:
        mine, theirs = (each.curve("device_allocated_bytes") for each in (self.run, self.baseline))
        if len(mine) < READINGS or len(theirs) < READINGS:
            return None
        peak, usual = float(mine.values.max()), float(theirs.values.max())
        return Memory(peak, usual, int(mine.steps[0]), int(mine.steps[-1])) if peak > 0 and usual > 0 else None

    @cached_property
    def validations(self) -> list[Validation]:
        """At all the steps that both validated at, where the baseline's is finite."""
        steps, mine, theirs = self.run.curve("val_loss").with_common(self.baseline.curve("val_loss"))
        every = zip(steps.tolist(), mine.tolist(), theirs.tolist(), strict=True)
        return [Validation(*each) for each in every if math.isfinite(each[2])]

    @cached_property
    def parted(self) -> tuple[int, float, float] | None:
        """The first step with another loss, to the bit, and both losses there."""
        steps, mine, theirs = self.run.curve("loss").with_common(self.baseline.curve("loss"))
        apart = np.flatnonzero(~_same(mine, theirs))
        return (int(steps[apart[0]]), float(mine[apart[0]]), float(theirs[apart[0]])) if apart.size else None

    @cached_property
    def common(self) -> int:
        """Steps of which both have a loss."""
        return len(self.run.curve("loss").with_common(self.baseline.curve("loss"))[0])


def agreed(said: str | None) -> float | None:
    """What a tag says of how much worse validation may be, as a share; None for one that says nothing of it."""
    try:
        share = float(said or "")
    except ValueError:
        return None
    return share if math.isfinite(share) and share >= 0 else None


def _settings(course: Course) -> Iterator[tuple[str, Any]]:
    yield from _flat(course.config)
    yield from ((name, course.environment.get(name)) for name in ENVIRONMENT)
    yield "world_size", course.world_size


def _flat(config: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """'model.width' for what lies deeper."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{within}{key}.")
        else:
            yield f"{within}{key}", value


def _last(key: str) -> str:
    return key.rpartition(".")[2].lower().replace("-", "_")


def _usual(course: Course, name: str) -> float:
    values = course.curve(name).values
    return float(np.median(values)) if len(values) else 0.0


def _same(mine: Floats, theirs: Floats) -> np.typing.NDArray[np.bool_]:
    """Equal to the bit; one NaN is as good as another."""
    both_nan = np.isnan(mine) & np.isnan(theirs)
    same: np.typing.NDArray[np.bool_] = both_nan | (mine.view(np.uint32) == theirs.view(np.uint32))
    return same
