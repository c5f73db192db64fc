"""The frames and batches that a training process writes and a collector reads.

The journal and the HTTP body use the same Structs, so there is one schema. codec.py encodes them. This module imports
only the standard library and msgspec.
"""

from __future__ import annotations

import struct
from array import array
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal

import msgspec

from ammeter.wire.decodable import decodable

PROTOCOL = 1
CONTENT_TYPE = "application/vnd.ammeter.batch+msgpack"

LOSS, LOSS_BACKWARD = "loss", "loss_backward"
"""LOSS is the loss of the batch. LOSS_BACKWARD is the tensor on which backward() was called, if its share of the
batch's loss is unknown. A run with several losses has `loss@gan.py:41` for each, and `loss_backward@...`."""

SCALARS: dict[str, str] = {
    "scale": "loss scale in effect during the step; absent without a scaler",
    "growth_tracker": "steps since the scale last changed, as GradScaler counts them",
    "found_inf": "optimizers for which GradScaler found a non-finite gradient",
    "applied": "optimizers that stepped",
    "skipped": "optimizers whose step GradScaler or the program skipped",
    "loss": "training loss of the batch, unscaled, all micro-batches together, or as run.log(loss=...) gives it",
    "val_loss": "validation loss from run.log",
    "samples": "samples in the step, from run.log, else the first dimension of the model's first input",
    "grad_norm": "L2 norm of all gradients, unscaled, before clipping",
    "grad_absmax": "largest finite |gradient|, unscaled; sampled",
    "grad_nonfinite": "NaN and Inf elements in all gradients",
    "clip_max": "max_norm that clip_grad_norm_ was called with",
    "micro_batches": "backward passes in the step",
    "step_seconds": "wall time since the previous step closed",
    "overhead_seconds": "host time spent inside Ammeter during the step",
    "tokens": "elements of the model's first input of integers, all micro-batches together",
    "calls_followed": "1 in steps in which the order of the program's calls was followed, else 0",
    "norms_every": "steps between two readings of the gradient norms that the budget allows",
    "full_every": "steps between two full readings that the budget allows",
    "host_rss_bytes": "resident memory of the process; sampled",
    "device_allocated_bytes": "device memory in tensors, its peak so far as torch counts it; CUDA, sampled",
    "device_reserved_bytes": "device memory reserved by torch's allocator; CUDA, sampled",
    "device_alloc_retries": "allocations so far that failed once and freed caches; CUDA, sampled",
    "lost_updates": "share of sampled weights that an applied step should have changed and did not; sampled",
    "update_ratio": "norm of the update over the norm of the weights; sampled",
    "weights_nonfinite": "NaN and Inf elements in sampled weights; sampled",
    "grad_agreement": "cosine between sampled gradients of two neighbouring readings; sampled",
    "low_precision_share": "share of the eligible FLOPs below autocast that ran in float16 or bfloat16; sampled",
    "cast_bytes": "bytes that casts between dtypes wrote in the step's forward pass; sampled",
    "loss_backward": "mean of the tensors of backward(), if their share of the batch's loss is unknown",
    "weights_checksum": "weighted sum of sampled weights before the step, equal on replicas; in steps shared by ranks",
    "weights_fingerprint": "24 bits of a hash of the sampled weights' bits before the step; in steps shared by ranks",
    "grad_bits": "significant bits of sampled float32 gradients, 8 as in bfloat16 to 24; in steps shared by ranks",
    "optimizer_lr": "learning rate of the first parameter group of the first optimizer that stepped",
    "optimizer_lr_lowest": "lowest learning rate of all groups, where they differ",
    "optimizer_lr_highest": "highest learning rate of all groups, where they differ",
    "optimizer_momentum": "momentum, or the first beta, of the first parameter group of the first optimizer",
    "local_nonfinite": "gradients with NaN or Inf on this rank before their reduction; read after bad steps",
    "local_absmax": "largest finite |gradient| on this rank before the reduction, still scaled; read after bad steps",
    "reduced_nonfinite": "gradients with NaN or Inf after their reduction; read after bad steps",
    "reduce_bits": "fewest significant bits of a tensor that the program passed to all_reduce(), where it is read",
    "reduce_absmax": "largest finite number that the program passed to all_reduce(); read after bad steps",
    "reduced_share": "elements that the program passed to all_reduce() after backward(), over those of trained weights",
    "handed_nonfinite": "buffers with NaN or Inf that the program passed to all_reduce(); sampled",
    "wait_seconds": "time from the end of a step or backward pass to the next forward pass, added up over the step",
    "device_utilization": "share of time in which the rank's devices ran a kernel, as NVML counts it; sampled",
}
"""Scalar columns of every rank's stream, in order, with their meaning. run.log may append others."""

STATS: dict[str, str] = {
    "grad.norm": "L2 norm of the gradient, unscaled",
    "grad.absmax": "largest finite |gradient|, unscaled; sampled",
    "grad.zeros": "elements that are zero; sampled",
    "grad.subnormals": "elements with 0 < |scaled gradient| < 2^-14, subnormal in float16; sampled",
    "grad.nans": "NaN elements",
    "grad.infs": "infinite elements",
    "grad.fp16_grid": "share of small nonzero elements that are multiples of 2^-24, the spacing of float16; sampled",
    "weight.norm": "L2 norm of the sampled elements of the weight; sampled",
    "weight.nonfinite": "NaN and Inf elements among the sampled elements of the weight; sampled",
    "update.ratio": "norm of the update over the norm of the weight, on sampled elements; sampled",
    "update.lost": "share of sampled elements that an applied step should have changed and did not; sampled",
    "grad.agreement": "cosine between the gradients of two neighbouring readings, on sampled elements; sampled",
}
"""Columns that exist once per tensor, with their meaning. Unscaled means divided by the loss scale."""

SILENCE = "silence"
"""The tag of a run with the names of its silenced verdicts, separated by commas."""

INTERACTIVE = "interactive"
"""Fact in the environment of a hello: the process is a notebook or a console, which may wait for a person."""

IMPORTED = "imported_from"
"""Fact in the environment of a hello: the tool from whose history the run was made. Nothing else watched it."""

NO_TIMES = "those of the import"
"""Value of its fact `imported_times`, if the history has no times."""

ABSENT_BITS = 0x7FC0A3A3
"""The float32 pattern of an absent value: a NaN that no arithmetic produces, so that a real NaN remains data."""

ABSENT = struct.pack("<I", ABSENT_BITS)


def is_loss(column: str) -> bool:
    """Returns whether a scalar column is a training loss, single or one of several."""
    return column in (LOSS, LOSS_BACKWARD) or column.startswith((f"{LOSS}@", f"{LOSS_BACKWARD}@"))


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """A watched parameter: its qualified name, shape and dtype ('float32').

    The shape of a sharded parameter is that of this rank's shard; counts refer to the shard.

    Attributes:
        copies: the number of ranks that have each element, 1 if every rank has a part of its own. The number assumes
            that all ranks have parts of the tensor, which is not so for pipeline stages. It is 0 for a tensor that is
            not sharded.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    copies: int = 0

    @property
    def numel(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count


class Schema(msgspec.Struct, frozen=True, dict=True):
    """The columns of a stream: the scalars, then one column per tensor for each stat."""

    scalars: tuple[str, ...] = tuple(SCALARS)
    stats: tuple[str, ...] = ()
    tensors: tuple[Tensor, ...] = ()

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.scalars) + len(self.stats) * len(self.tensors)

    @cached_property
    def places(self) -> dict[str, int]:
        """Scalar -> its column."""
        return {name: place for place, name in enumerate(self.scalars)}

    @cached_property
    def losses(self) -> tuple[str, ...]:
        """The columns that are training losses of the run."""
        return tuple(name for name in self.scalars if is_loss(name))

    @cached_property
    def numels(self) -> array[int]:
        """Elements of each tensor, as int64."""
        return array("q", (tensor.numel for tensor in self.tensors))

    @cached_property
    def sharded(self) -> bool:
        """Whether this rank has parts of tensors."""
        return any(tensor.copies for tensor in self.tensors)

    @cached_property
    def id(self) -> str:
        """Id of this schema: a hash of its content, in 16 hex digits."""
        return blake2b(msgspec.msgpack.encode(self), digest_size=8).hexdigest()

    def span(self, stat: str) -> slice:
        """Returns the columns of one per-tensor stat. Raises ValueError if the schema lacks it."""
        first = len(self.scalars) + self.stats.index(stat) * len(self.tensors)
        return slice(first, first + len(self.tensors))


class Hello(msgspec.Struct, frozen=True, tag="hello", tag_field="kind"):
    """The writer of a stream and its columns.

    It is the first frame of every segment, and is repeated when the columns change.
    """

    run: str
    stream: str
    schema: Schema
    role: Literal["rank", "host"] = "rank"
    rank: int = 0
    world_size: int = 1
    host: str = ""
    pid: int = 0
    started: int = 0
    name: str = ""
    project: str = "default"
    config: dict[str, Any] = {}
    tags: dict[str, str] = {}
    environment: dict[str, str] = {}
    protocol: int = PROTOCOL


class Steps(msgspec.Struct, frozen=True, tag="steps", tag_field="kind"):
    """The row of one step: little-endian float32 of the leading columns; the rest are absent."""

    step: int
    time: int
    values: bytes


class Event(msgspec.Struct, frozen=True, tag="event", tag_field="kind"):
    """An observation at a step. docs/events.md describes each `name`, which is subject.happened."""

    name: str
    step: int
    time: int
    data: dict[str, Any] = {}


class Lost(msgspec.Struct, frozen=True, tag="lost", tag_field="kind"):
    """Counts of lost records with a reason. begin < end are their logical offsets."""

    reason: str
    steps: int = 0
    events: int = 0
    begin: int = 0
    end: int = 0


class Bye(msgspec.Struct, frozen=True, tag="bye", tag_field="kind", omit_defaults=True):
    """The last frame of a stream.

    Reason 'lost' marks a process that died without a final record.

    Attributes:
        ended_by: one of ENDED_BY, if the process that wrote this frame knows more than the message.
        memory_limit: limit of the process's control group in bytes; 0 if unknown.
    """

    reason: Literal["closed", "exit", "exception", "signal", "lost"]
    step: int
    time: int
    message: str = ""
    ended_by: str = ""
    memory_limit: int = 0


ENDED_BY: dict[str, str] = {
    "oom-killer": "the kernel killed it because of a lack of memory",
    "time-limit": "Slurm ended the job at its time limit",
    "slurm": "Slurm ended the job before its time limit: preempted, cancelled, or its node drained",
    "kubernetes": "Kubernetes ended the pod: evicted, preempted, deleted, or its node drained",
    "job": "SIGTERM ended the whole job, not only this process",
    "sigterm": "SIGTERM ended it",
}
"""Known causes of the end of a process, as an observer determined them."""

REQUESTED_ENDS = frozenset(ENDED_BY) - {"oom-killer"}
"""The causes in which a person or another program requested the end."""


class Block(msgspec.Struct, frozen=True, tag="block", tag_field="kind"):
    """A series of `steps` frames as columns, packed by columns.pack.

    schema: id of the schema in the last hello.
    """

    schema: str
    rows: int
    columns: int
    first_step: int
    last_step: int
    data: bytes


Frame = Hello | Steps | Event | Lost | Bye
Item = Hello | Block | Event | Lost | Bye


class Batch(msgspec.Struct, frozen=True):
    """The body of one request: the journal's content from A to B.

    A batch without items and with A = B is a heartbeat.

    Attributes:
        items: frames and blocks, in order.
        gaps: ranges from A to B that the journal no longer has.
        alive: whether the writer's process lock exists.
        backlog: bytes of journal after B.
        completed_step, completed_time: number and time in ns of the newest step that the writer has completed, whose
            row it may not have written yet; -1 and 0 if unknown.
    """

    items: list[Item] = []
    gaps: list[Lost] = []
    alive: bool = True
    backlog: int = 0
    protocol: int = PROTOCOL
    completed_step: int = -1
    completed_time: int = 0


@decodable
class Ack(msgspec.Struct, frozen=True):
    """The collector's answer: everything before `offset` is committed.

    directives: instructions for the agent.
    """

    offset: int
    directives: list[dict[str, Any]] = []
