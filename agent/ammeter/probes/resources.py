"""Measures per step: wall time, overhead of Ammeter, memory, samples and tokens."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from ammeter.journal import DeviceUse

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.fast_path import FastStep
    from ammeter.recording.row import Row
    from ammeter.recording.schedule.bucket import Bucket

MEMORY_NS = 10**9
"""Interval between two readings of memory: each takes some system calls, and the memory of a run changes slowly."""

SMOOTHING = 0.05
"""Weight of the newest step in the moving averages, so that one slow step hardly changes the schedule."""

MIN_RELATIVE_CHANGE = 0.1
SCHEDULE_NS = 10**7
"""A schedule is checked once per SCHEDULE_NS, and written again after a relative change above MIN_RELATIVE_CHANGE."""

TOKEN_DTYPES = (torch.int64, torch.int32)

_COUNTS = ("samples", "tokens")

Counted = dict[int, tuple[int, int]]


class Resources:
    name = "resources"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._device_use = DeviceUse(session.journal.folder)
        self.previous: float | None = None
        self._mean: float | None = None
        self._memory_read = 0
        self._schedule_read = 0
        self._schedules: dict[str, float] = {}
        self._logged_by_program = False
        self._per_micro_batch = dict.fromkeys(_COUNTS, 0.0)
        """Moving average per micro-batch, over the steps whose forward pass was observed."""
        self._observed_steps = 0
        """Steps whose forward pass was observed."""

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        self.previous = None  # the time between detach and attach belongs to no step
        return self._session.fast_path.pauses([self._session.forward.subscribe(trains=guard(self._forward))])

    def close(self, row: Row) -> None:
        """Records the step time and the overhead at the step boundary."""
        now, overhead = perf_counter(), self._session.take_overhead()
        if self.previous is not None:
            row.scalars["step_seconds"] = now - self.previous
            self._session.governor.earn(now - self.previous, overhead)
        self.previous = now
        row.scalars["overhead_seconds"] = overhead

    def usual_counts(self, fast_step: FastStep) -> tuple[float, float]:
        """Estimates (samples, tokens) of a step on the fast path from its backward passes.

        0 stands for unknown, and for samples that the program logs itself.
        """
        if fast_step.logged is not None and "samples" in fast_step.logged:
            self._logged_by_program = True
        samples, tokens = self._per_micro_batch.values()
        return 0.0 if self._logged_by_program else fast_step.backwards * samples, fast_step.backwards * tokens

    def apply_fast_step(self, row: Row, fast_step: FastStep, is_open: bool) -> None:
        """Marks a row without observation of the forward pass, at least at its beginning."""
        if self._session.working or not is_open:
            row.raw["unobserved_inputs"] = True

    def finish(self, row: Row) -> None:
        self._schedule(row)
        self._work(row)
        if row.time - self._memory_read >= MEMORY_NS:
            self._memory_read = row.time
            row.scalars |= memory(tensor.device for _, tensor in self._session.watched.alive())
            if (utilization := self._device_use.poll()) is not None:
                row.scalars["device_utilization"] = utilization

    def _schedule(self, row: Row) -> None:
        seconds = row.scalars.get("step_seconds")
        if seconds is None:
            return
        self._mean = seconds if self._mean is None else self._mean + SMOOTHING * (seconds - self._mean)
        governor = self._session.governor
        if row.time - self._schedule_read < SCHEDULE_NS:
            return
        self._schedule_read = row.time
        for name, bucket in (("norms_every", governor.norms), ("full_every", governor.full)):
            steps = reading_interval(bucket, self._mean)
            if steps is not None and bucket is governor.norms and governor.norm_schedule.interval:
                steps = min(steps, float(governor.norm_schedule.interval))
            known = self._schedules.get(name)
            if steps is not None and (known is None or abs(steps - known) > MIN_RELATIVE_CHANGE * known):
                self._schedules[name] = row.scalars[name] = steps

    def _work(self, row: Row) -> None:
        self._logged_by_program = self._logged_by_program or "user:samples" in row.transfers
        observed: Counted = row.raw.get("inputs", {})
        estimated, micro_batches = "unobserved_inputs" in row.raw, row.raw.get("micro_batches", 0)
        self._observed_steps += bool(observed)
        for at, name in enumerate(_COUNTS):
            count: float = min((counted[at] for counted in observed.values() if counted[at]), default=0)
            if estimated:
                count = micro_batches * self._per_micro_batch[name]
            elif observed and micro_batches:
                weight = max(SMOOTHING, 1 / self._observed_steps)
                self._per_micro_batch[name] += (count / micro_batches - self._per_micro_batch[name]) * weight
            if count and not (name == "samples" and self._logged_by_program):
                row.scalars[name] = count

    def _forward(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Adds up the inputs of each watched model in training.

        Of several models the smallest count is reported: the discriminator of a GAN may process every batch twice.
        """
        self._add(self._session.row, module, batch(args, kwargs))

    def _add(self, row: Row, module: torch.nn.Module, more: tuple[int, int]) -> None:
        counted: Counted | None = row.raw.get("inputs")
        if counted is None:
            row.raw["inputs"] = {id(module): more}
        else:
            before = counted.get(id(module), (0, 0))
            counted[id(module)] = before[0] + more[0], before[1] + more[1]


def reading_interval(bucket: Bucket, step_seconds: float) -> float | None:
    """Steps between two readings that the budget allows, at least 1.

    None until the cost of a reading is known, and for a bucket that allows no reading or any number of them.
    """
    earned = bucket.share * step_seconds
    if not bucket.cost or not 0 < earned < math.inf:
        return None
    return max(1.0, bucket.cost / earned)


def batch(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, int]:
    """(samples, tokens) in the arguments of a model's call, 0 where unknown; see counts()."""
    return counts((tensor.dtype, tensor.shape) for tensor in _tensors((*args, *kwargs.values())))


def counts(inputs: Iterable[tuple[torch.dtype, torch.Size]]) -> tuple[int, int]:
    """Estimates (samples, tokens) from the dtypes and shapes of a model's inputs, 0 where unknown.

    Samples are the first dimension of the first tensor. Tokens are the elements of the first integer tensor that has
    at least two dimensions or is the first input. Labels and masks of the same shape are therefore not counted again,
    and one-dimensional time steps are not counted.
    """
    samples = tokens = 0
    for at, (dtype, shape) in enumerate(inputs):
        integer = dtype in TOKEN_DTYPES
        if at == 0 and len(shape) > integer:
            samples = shape[0]
        if integer and (len(shape) > 1 or at == 0):
            tokens = shape.numel()
        if tokens or at == MAX_INPUTS:
            break
    return samples, tokens


def memory(devices: Iterable[torch.device]) -> dict[str, float]:
    """Memory of this process: resident on the host, and device_memory() of these CUDA devices."""
    columns = {} if (resident := _resident()) is None else {"host_rss_bytes": resident}
    cuda = {device for device in devices if device.type == "cuda"}
    return columns | (device_memory([torch.cuda.memory_stats(device) for device in cuda]) if cuda else {})


def device_memory(stats: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Adds up torch.cuda.memory_stats of several devices.

    These statistics come from the allocator on the host, so reading them does not synchronize with the device.
    """
    per_device = list(stats)
    return {
        column: float(sum(statistics.get(name, 0) for statistics in per_device))
        for column, name in (
            ("device_allocated_bytes", "allocated_bytes.all.peak"),
            ("device_reserved_bytes", "reserved_bytes.all.current"),
            ("device_alloc_retries", "num_alloc_retries"),
        )
    }


MAX_INPUTS = 16
"""Inputs of a model that counts() examines, so that a call with very many tensors stays cheap."""


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among these values, including those directly in a list, tuple or dict."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from (element for element in value.values() if isinstance(element, torch.Tensor))
        elif isinstance(value, list | tuple):
            yield from (element for element in value if isinstance(element, torch.Tensor))


def _resident() -> float | None:
    """Resident set size in bytes; None without /proc. The second number of statm is in pages (proc(5))."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return float(file.read(128).split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):  # not Linux, or a sandbox without /proc
        return None


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
