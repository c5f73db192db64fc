"""The public names of the protocol's frames and batches (docs/protocol.md)."""

from ammeter.wire.codec import decode_batch, encode_batch
from ammeter.wire.frames import (
    CONTENT_TYPE,
    PROTOCOL,
    SCALARS,
    STATS,
    Ack,
    Batch,
    Block,
    Bye,
    Event,
    Hello,
    Lost,
    Schema,
    Steps,
    Tensor,
)

__all__ = [
    "CONTENT_TYPE",
    "PROTOCOL",
    "SCALARS",
    "STATS",
    "Ack",
    "Batch",
    "Block",
    "Bye",
    "Event",
    "Hello",
    "Lost",
    "Schema",
    "Steps",
    "Tensor",
    "decode_batch",
    "encode_batch",
]
