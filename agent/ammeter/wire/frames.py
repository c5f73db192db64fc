"""Frames: the words a training process writes and a collector reads.

The journal file and the HTTP body carry the same Structs, so there is one schema. A frame on disk is
a 20-byte header and a msgpack payload; the header names the frame's logical offset, so a reader finds
its way again behind a torn or removed frame. Leaf of the house: standard library and msgspec only.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterator
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal

import msgspec

PROTOCOL = 1
CONTENT_TYPE = "application/vnd.ammeter.batch+msgpack"

LOSS, LOSS_BACKWARD = "loss", "loss_backward"
"""The loss of the batch, and what backward() was called on where nobody knows what part of that it is. A run with
several losses has `loss@gan.py:41` for each, and `loss_backward@...`."""

SCALARS: dict[str, str] = {
    "scale": "loss scale in effect during the step; absent without a scaler",
    "growth_tracker": "steps since the scale last changed, as GradScaler counts them",
    "found_inf": "optimizers for which GradScaler found a non-finite gradient",
    "applied": "optimizers that stepped",
    "skipped": "optimizers that GradScaler kept from stepping",
    "loss": "training loss of the batch, unscaled, all micro-batches together, unless run.log(loss=...) said it",
    "val_loss": "validation loss from run.log",
    "samples": "samples in the step, from run.log, else the first extent of the model's first input",
    "grad_norm": "L2 norm of all gradients, unscaled, before clipping",
    "grad_absmax": "largest finite |gradient|, unscaled; sampled",
    "grad_nonfinite": "NaN and Inf elements in all gradients",
    "clip_max": "max_norm that clip_grad_norm_ was called with",
    "micro_batches": "backward passes in the step",
    "step_seconds": "wall time since the previous step closed",
    "overhead_seconds": "host time spent inside Ammeter during the step",
    "tokens": "elements of the model's first input of integers, all micro-batches together",
    "calls_followed": "1 in steps in which the order of the program's calls was followed, else 0",
    "norms_every": "steps between two readings of the gradient norms, as the budget has it",
    "full_every": "steps between two readings of everything, as the budget has it",
    "host_rss_bytes": "resident memory of the process; sampled",
    "device_allocated_bytes": "device memory in tensors, its peak so far as torch counts it; CUDA, sampled",
    "device_reserved_bytes": "device memory held by torch's allocator; CUDA, sampled",
    "device_alloc_retries": "allocations so far that failed once and freed caches; CUDA, sampled",
    "lost_updates": "share of sampled weights that an applied step did not change although it meant to; sampled",
    "update_ratio": "norm of the update over the norm of the weights; sampled",
    "weights_nonfinite": "NaN and Inf elements in sampled weights; sampled",
    "grad_agreement": "cosine between sampled gradients of two neighbouring readings; sampled",
    "low_precision_share": "share of the eligible FLOPs below autocast that ran in float16 or bfloat16; sampled",
    "cast_bytes": "bytes that casts between dtypes wrote in the step's forward pass; sampled",
    "loss_backward": "mean of what backward() was called on, where nobody knows what part of the batch's loss it is",
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
    "update.lost": "share of sampled elements that an applied step did not change although it meant to; sampled",
    "grad.agreement": "cosine between the gradients of two neighbouring readings, on sampled elements; sampled",
}
"""Columns that exist once per tensor, with their meaning. Unscaled means divided by the loss scale."""

ABSENT_BITS = 0x7FC0A3A3
"""The float32 pattern that says "not measured": a NaN no arithmetic makes, so a real NaN stays data."""

ABSENT = struct.pack("<I", ABSENT_BITS)


def is_loss(column: str) -> bool:
    """Whether a scalar column is a training loss of the run's: the one, or one of several."""
    return column in (LOSS, LOSS_BACKWARD) or column.startswith((f"{LOSS}@", f"{LOSS_BACKWARD}@"))


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """A watched parameter: its qualified name, shape and dtype ('float32').

    Of a sharded one, shape is that of this rank's shard; counts refer to it. copies: on how many ranks each of its
    elements lies, 1 where every rank has its own part, counted as if all ranks had parts of it (stages of a pipeline
    do not); 0 for a tensor that lies whole on every rank that has it.
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
    """What the columns of a stream are: the scalars, then for each stat one column per tensor."""

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
        """The columns that are training losses of the run's."""
        return tuple(name for name in self.scalars if is_loss(name))

    @cached_property
    def numels(self) -> array[int]:
        """Elements of each tensor, as int64."""
        return array("q", (tensor.numel for tensor in self.tensors))

    @cached_property
    def sharded(self) -> bool:
        """Whether this rank holds parts of tensors."""
        return any(tensor.copies for tensor in self.tensors)

    @cached_property
    def id(self) -> str:
        """16 hex digits that name this schema: a hash of its content."""
        return blake2b(msgspec.msgpack.encode(self), digest_size=8).hexdigest()

    def span(self, stat: str) -> slice:
        """The columns of one per-tensor stat. Raises ValueError for a stat that is not in the schema."""
        first = len(self.scalars) + self.stats.index(stat) * len(self.tensors)
        return slice(first, first + len(self.tensors))


class Hello(msgspec.Struct, frozen=True, tag="hello", tag_field="kind"):
    """Who writes this stream and what its columns are. First in every segment, again when columns change."""

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
    """One step's row: little-endian float32 of the leading columns; columns beyond the bytes are absent."""

    step: int
    time: int
    values: bytes


class Event(msgspec.Struct, frozen=True, tag="event", tag_field="kind"):
    """Something happened at a step. `name` is subject.happened and is described in docs/events.md."""

    name: str
    step: int
    time: int
    data: dict[str, Any] = {}


class Lost(msgspec.Struct, frozen=True, tag="lost", tag_field="kind"):
    """Records that are gone, by reason. begin < end says which logical offsets they had."""

    reason: str
    steps: int = 0
    events: int = 0
    begin: int = 0
    end: int = 0


class Bye(msgspec.Struct, frozen=True, tag="bye", tag_field="kind", omit_defaults=True):
    """The stream's last frame. Reason 'lost' is written for a process that died without saying it.

    ended_by: one of ENDED_BY, where whoever wrote this for the process knows more than the message says. memory_limit:
    bytes that its control group may have; 0 for not known.
    """

    reason: Literal["closed", "exit", "exception", "signal", "lost"]
    step: int
    time: int
    message: str = ""
    ended_by: str = ""
    memory_limit: int = 0


ENDED_BY: dict[str, str] = {
    "oom-killer": "the kernel killed it for want of memory",
    "time-limit": "Slurm ended the job at its time limit",
    "slurm": "Slurm ended the job before its time limit: preempted, cancelled, or its node drained",
    "kubernetes": "Kubernetes ended the pod: evicted, preempted, deleted, or its node drained",
    "job": "the whole job was told to end, by SIGTERM to more than this process",
    "sigterm": "it was told to end by SIGTERM",
}
"""What the end of a process is known to come from, as whoever looked on has found it."""

ASKED_TO_END = frozenset(ENDED_BY) - {"oom-killer"}
"""Of these, those in which somebody or something told it to end."""


class Block(msgspec.Struct, frozen=True, tag="block", tag_field="kind"):
    """A run of `steps` frames as columns, packed by block.pack; `schema` is the id from the last hello."""

    schema: str
    rows: int
    columns: int
    first_step: int
    last_step: int
    data: bytes


Frame = Hello | Steps | Event | Lost | Bye
Item = Hello | Block | Event | Lost | Bye


class Batch(msgspec.Struct, frozen=True):
    """One request's body: what the journal holds from A to B, in order, and the ranges it no longer holds.

    alive: whether the writer's lock is held. backlog: bytes of journal behind B. A batch without items and
    with A = B is a heartbeat.
    """

    items: list[Item] = []
    gaps: list[Lost] = []
    alive: bool = True
    backlog: int = 0
    protocol: int = PROTOCOL


class Ack(msgspec.Struct, frozen=True):
    """The collector's answer: everything before `offset` is committed. Directives are for the agent."""

    offset: int
    directives: list[dict[str, Any]] = []


_HEADER = struct.Struct("<4sIQI")
_COVERED = struct.Struct("<IQ")
"""What of a header its checksum covers, before the payload: the length and the offset."""
_crc = zlib.crc32
MAGIC = b"AmJ1"
HEADER_BYTES = _HEADER.size
MAX_FRAME_BYTES = 64 * 2**20

_encoder = msgspec.msgpack.Encoder()
_frame_decoder = msgspec.msgpack.Decoder(Frame)
_batch_decoder = msgspec.msgpack.Decoder(Batch)


def encode(frame: Frame, offset: int) -> bytes:
    """The frame as it stands in a journal at a logical offset (bytes from the stream's beginning)."""
    payload = _encoder.encode(frame)
    length = len(payload)
    return _HEADER.pack(MAGIC, length, offset, _crc(payload, _crc(_COVERED.pack(length, offset)))) + payload


def scan(data: bytes | memoryview, start: int = 0) -> Iterator[tuple[int, int, int, Frame]]:
    """Yields (position, size, offset, frame) for each whole frame in data from start on.

    Bytes that are no whole, checksummed frame are passed over to the next one that is; the caller sees the
    hole in the offsets. Ends before a frame that is cut off at the end of data.
    """
    view = memoryview(data)
    position = start
    while position + HEADER_BYTES <= len(view):
        found = _frame_at(view, position)
        if found is None:
            data = bytes(data)
            position = _next_magic(data, position + 1)
            continue
        size, offset, frame = found
        yield position, size, offset, frame
        position += size


def seek(data: bytes | memoryview, offset: int) -> int:
    """A position in data to scan from when only frames that reach beyond a logical offset matter.

    Looks at headers only. What it passes over begins, and therefore ends, no later than a frame at or before
    the offset does.
    """
    view = memoryview(data)
    position = found = 0
    while position + HEADER_BYTES <= len(view):
        magic, length, at, _ = _HEADER.unpack_from(view, position)
        if magic != MAGIC or at > offset:
            break
        found = position
        position += HEADER_BYTES + length
    return found


def offset_in(header: bytes) -> int | None:
    """The logical offset that a frame's header says; None for bytes that are no header."""
    if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
        return None
    offset: int = _HEADER.unpack_from(header)[2]
    return offset


def encode_batch(batch: Batch) -> bytes:
    return _encoder.encode(batch)


def decode_batch(body: bytes) -> Batch:
    """Raises msgspec.DecodeError (a ValidationError names the field) for anything that is not a batch."""
    return _batch_decoder.decode(body)


def _frame_at(view: memoryview, position: int) -> tuple[int, int, Frame] | None:
    magic, length, offset, checksum = _HEADER.unpack_from(view, position)
    end = position + HEADER_BYTES + length
    if magic != MAGIC or length > MAX_FRAME_BYTES or end > len(view):
        return None
    payload = view[position + HEADER_BYTES : end]
    if checksum != _crc(payload, _crc(_COVERED.pack(length, offset))):
        return None
    try:
        return HEADER_BYTES + length, offset, _frame_decoder.decode(payload)
    except msgspec.DecodeError:
        return None


def _next_magic(data: bytes, start: int) -> int:
    found = data.find(MAGIC, start)
    return len(data) if found < 0 else found
