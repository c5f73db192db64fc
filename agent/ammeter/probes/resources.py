"""What a step costs and how much it does: wall time, our share of it, memory, samples and tokens."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ammeter.recording.budget import Bucket
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.fast_notes import FastStep
    from ammeter.recording.row import Row

MEMORY_NS = 10**9
"""Between two readings of memory: each takes some system calls, and memory of a run changes slowly."""

SMOOTHING = 0.05
"""Weight of the newest step in the mean step time, so that one slow step says nothing about the schedule."""

NEWS = 0.1
SAY_NS = 10**7
"""A schedule that changes by less than this share is not written again, nor one that was written just now."""

TOKENS = (torch.int64, torch.int32)

_COUNTS = ("samples", "tokens")

Counted = dict[int, tuple[int, int]]


class Resources:
    name = "resources"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self.previous: float | None = None
        self._mean: float | None = None
        self._memory_read = 0
        self._said = 0
        self._every: dict[str, float] = {}
        self._said_by_program = False
        self._usual = dict.fromkeys(_COUNTS, 0.0)
        """In a micro-batch of the steps whose forward pass was heard: the mean, in which the newest count most."""
        self._heard = 0

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        self.previous = None  # the time that a session spent unsubscribed was no step
        return self._session.while_awake([self._session.forward.subscribe(trains=guard(self._forward))])

    def close(self, row: Row) -> None:
        """The step ends now."""
        now, overhead = perf_counter(), self._session.take_overhead()
        if self.previous is not None:
            row.scalars["step_seconds"] = now - self.previous
            self._session.governor.earn(now - self.previous, overhead)
        self.previous = now
        row.scalars["overhead_seconds"] = overhead

    def counted(self, note: FastStep) -> tuple[float, float]:
        """(samples, tokens) that a step that was rested in usually has, 0 where unknown or said by the program."""
        self._said_by_program = self._said_by_program or (note.logged is not None and "samples" in note.logged)
        samples, tokens = self._usual.values()
        return 0.0 if self._said_by_program else note.backwards * samples, note.backwards * tokens

    def apply_fast_step(self, row: Row, note: FastStep, here: bool) -> None:
        """The forward pass was not heard in this step, or not in its first part."""
        if self._session.working or not here:
            row.raw["rested"] = True

    def finish(self, row: Row) -> None:
        self._schedule(row)
        self._work(row)
        if row.time - self._memory_read >= MEMORY_NS:
            self._memory_read = row.time
            row.scalars |= memory(each.device for _, each in self._session.watched.alive())

    def _schedule(self, row: Row) -> None:
        seconds = row.scalars.get("step_seconds")
        if seconds is None:
            return
        self._mean = seconds if self._mean is None else self._mean + SMOOTHING * (seconds - self._mean)
        governor = self._session.governor
        if row.time - self._said < SAY_NS:
            return
        self._said = row.time
        for name, bucket in (("norms_every", governor.norms), ("full_every", governor.full)):
            steps = every(bucket, self._mean)
            known = self._every.get(name)
            if steps is not None and (known is None or abs(steps - known) > NEWS * known):
                self._every[name] = row.scalars[name] = steps

    def _work(self, row: Row) -> None:
        self._said_by_program = self._said_by_program or "user:samples" in row.transfers
        heard: Counted = row.raw.get("inputs", {})
        rested, parts = "rested" in row.raw, row.raw.get("micro_batches", 0)
        self._heard += bool(heard)
        for at, name in enumerate(_COUNTS):
            count: float = min((each[at] for each in heard.values() if each[at]), default=0)
            if rested:
                count = parts * self._usual[name]
            elif heard and parts:
                self._usual[name] += (count / parts - self._usual[name]) * max(SMOOTHING, 1 / self._heard)
            if count and not (name == "samples" and self._said_by_program):
                row.scalars[name] = count

    def _forward(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Adds up what each watched model gets in training. Of several, one of a GAN for instance, the least counts:
        the other may see every batch twice."""
        self._add(self._session.row, module, batch(args, kwargs))

    def _add(self, row: Row, module: torch.nn.Module, more: tuple[int, int]) -> None:
        counted: Counted | None = row.raw.get("inputs")
        if counted is None:
            row.raw["inputs"] = {id(module): more}
        else:
            before = counted.get(id(module), (0, 0))
            counted[id(module)] = before[0] + more[0], before[1] + more[1]


def every(bucket: Bucket, step_seconds: float) -> float | None:
    """Steps from one reading to the next as the budget has it, at least 1; None while nothing is known or bounded."""
    earned = bucket.share * step_seconds
    if not bucket.cost or not 0 < earned < math.inf:
        return None
    return max(1.0, bucket.cost / earned)


def batch(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, int]:
    """(samples, tokens) in a call of a model, 0 where unknown, by counts()."""
    return counts((tensor.dtype, tensor.shape) for tensor in _tensors((*args, *kwargs.values())))


def counts(inputs: Iterable[tuple[torch.dtype, torch.Size]]) -> tuple[int, int]:
    """(samples, tokens) in a call of a model with tensors of these dtypes and shapes, 0 where unknown.

    Samples: the first extent of the first tensor. Tokens: elements of the first integer tensor that is a batch of
    sequences or comes first of all; labels and masks of its shape are not counted again, time steps not at all.
    """
    samples = tokens = 0
    for at, (dtype, shape) in enumerate(inputs):
        integer = dtype in TOKENS
        if at == 0 and len(shape) > integer:
            samples = shape[0]
        if integer and (len(shape) > 1 or at == 0):
            tokens = shape.numel()
        if tokens or at == MAX_INPUTS:
            break
    return samples, tokens


def memory(devices: Iterable[torch.device]) -> dict[str, float]:
    """Bytes that this process holds: resident on the host, and on the CUDA devices of these tensors together."""
    found = {} if (resident := _resident()) is None else {"host_rss_bytes": resident}
    cuda = {device for device in devices if device.type == "cuda"}
    return found | (device_memory([torch.cuda.memory_stats(device) for device in cuda]) if cuda else {})


def device_memory(stats: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """torch.cuda.memory_stats of several devices, added up. It asks the allocator on the host, not the device."""
    several = list(stats)
    return {
        column: float(sum(each.get(name, 0) for each in several))
        for column, name in (
            ("device_allocated_bytes", "allocated_bytes.all.peak"),
            ("device_reserved_bytes", "reserved_bytes.all.current"),
            ("device_alloc_retries", "num_alloc_retries"),
        )
    }


MAX_INPUTS = 16
"""Inputs of a model that are looked at."""


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among these, also those in a list or dict, as a batch may come."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from (each for each in value.values() if isinstance(each, torch.Tensor))
        elif isinstance(value, list | tuple):
            yield from (each for each in value if isinstance(each, torch.Tensor))


def _resident() -> float | None:
    """proc(5): the second number of statm is the resident set, in pages."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return float(file.read(128).split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):  # not Linux, or a sandbox without /proc
        return None


_PAGE = os.sysconf("SC_PAGE_SIZE")
