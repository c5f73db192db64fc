"""Encodes frames for the journal and batches for HTTP.

A frame on disk is a header of 20 bytes and a msgpack payload. The header contains the frame's logical offset, so that a
reader can continue after a torn or removed frame. This module imports only the standard library and msgspec.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import msgspec

from ammeter.wire.frames import Batch, Frame

_HEADER = struct.Struct("<4sIQI")
_COVERED = struct.Struct("<IQ")
"""The part of the header that the checksum covers, before the payload: length and offset."""
_crc = zlib.crc32

MAGIC = b"AmJ1"
HEADER_BYTES = _HEADER.size
_MAX_FRAME_BYTES = 64 * 2**20

_encoder = msgspec.msgpack.Encoder()
_frame_decoder = msgspec.msgpack.Decoder(Frame)
_batch_decoder = msgspec.msgpack.Decoder(Batch)


def encode(frame: Frame, offset: int) -> bytes:
    """Encodes a frame for a journal.

    Args:
        offset: logical offset in bytes since the stream's beginning.
    """
    payload = _encoder.encode(frame)
    length = len(payload)
    return _HEADER.pack(MAGIC, length, offset, _crc(payload, _crc(_COVERED.pack(length, offset)))) + payload


def scan(data: bytes | memoryview, start: int = 0) -> Iterator[tuple[int, int, int, Frame]]:
    """Yields (position, size, offset, frame) for each whole frame in data from start on.

    Bytes that are not a whole frame with a correct checksum are skipped; the caller sees the hole in the offsets. The
    iteration ends before a frame that is cut off at the end of data.
    """
    view = memoryview(data)
    position = start
    while position + HEADER_BYTES <= len(view):
        framed = _frame_at(view, position)
        if framed is None:
            data = bytes(data)
            position = _next_magic(data, position + 1)
            continue
        size, offset, frame = framed
        yield position, size, offset, frame
        position += size


def seek(data: bytes | memoryview, offset: int) -> int:
    """Returns a position to scan from for frames that end after a logical offset.

    Reads only headers. Every frame before the position ends at or before the offset, because a frame that begins there
    or earlier follows it.
    """
    view = memoryview(data)
    position = start = 0
    while position + HEADER_BYTES <= len(view):
        magic, length, at, _ = _HEADER.unpack_from(view, position)
        if magic != MAGIC or at > offset:
            break
        start = position
        position += HEADER_BYTES + length
    return start


def offset_in(header: bytes) -> int | None:
    """Returns the logical offset in a frame's header; None for other bytes."""
    if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
        return None
    offset: int = _HEADER.unpack_from(header)[2]
    return offset


def encode_batch(batch: Batch) -> bytes:
    return _encoder.encode(batch)


def decode_batch(body: bytes) -> Batch:
    """Decodes the body of a request.

    Raises:
        msgspec.DecodeError: the body is no batch; a ValidationError names the invalid field.
    """
    return _batch_decoder.decode(body)


def _frame_at(view: memoryview, position: int) -> tuple[int, int, Frame] | None:
    magic, length, offset, checksum = _HEADER.unpack_from(view, position)
    end = position + HEADER_BYTES + length
    if magic != MAGIC or length > _MAX_FRAME_BYTES or end > len(view):
        return None
    payload = view[position + HEADER_BYTES : end]
    if checksum != _crc(payload, _crc(_COVERED.pack(length, offset))):
        return None
    try:
        return HEADER_BYTES + length, offset, _frame_decoder.decode(payload)
    except msgspec.DecodeError:
        return None


def _next_magic(data: bytes, start: int) -> int:
    position = data.find(MAGIC, start)
    return len(data) if position < 0 else position
