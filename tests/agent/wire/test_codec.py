from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as any_of

from ammeter.wire import codec
from ammeter.wire.frames import Batch, Block, Bye, Event, Hello, Lost, Schema, Steps, Tensor

FRAMES: list[Any] = [
    Hello("run", "stream", Schema(tensors=(Tensor("w", (2, 3), "float32"),)), config={"lr": 0.1}, tags={"a": "b"}),
    Steps(7, 1_700_000_000_000_000_000, struct.pack("<2f", 1.0, float("nan"))),
    Event("step.skipped", 7, 1, {"scale": 2.0, "tensors": [{"tensor": "w"}]}),
    Lost("journal-cap", 3, 1, 10, 20),
    Bye("exception", 7, 2, "ValueError: no such luck"),
]


def _journal(frames: list[Any], begin: int = 0) -> bytes:
    data = b""
    for frame in frames:
        data += codec.encode(frame, begin + len(data))
    return data


def _frames(data: bytes) -> list[Any]:
    return [frame for _, _, _, frame in codec.scan(data)]


def test_frames_are_read_as_they_were_written_with_their_offsets() -> None:
    data = _journal(FRAMES, begin=1000)
    found = list(codec.scan(data))
    assert FRAMES == [frame for *_, frame in found]
    assert [1000 + position for position, *_ in found] == [offset for _, _, offset, _ in found]
    assert len(data) == sum(size for _, size, _, _ in found)


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_tail_hides_only_the_frame_it_tore(cut: int) -> None:
    assert FRAMES[:-1] == _frames(_journal(FRAMES)[:-cut])


@settings(max_examples=60, deadline=None)
@given(any_of.binary(max_size=200), any_of.integers(0, 4))
def test_bytes_that_are_no_frame_are_passed_over_wherever_they_stand(garbage: bytes, place: int) -> None:
    before, behind = _journal(FRAMES[:place]), _journal(FRAMES[place:], 500)
    found = _frames(before + garbage + behind)
    assert FRAMES == [frame for frame in found if frame in FRAMES]


@settings(max_examples=60, deadline=None)
@given(any_of.data())
def test_a_flipped_bit_never_makes_another_frame(data: Any) -> None:
    whole = bytearray(_journal(FRAMES))
    at = data.draw(any_of.integers(0, len(whole) * 8 - 1))
    whole[at // 8] ^= 1 << at % 8
    found = _frames(bytes(whole))
    assert len(FRAMES) - 1 == len(found)
    assert all(frame in FRAMES for frame in found)


def test_a_length_that_claims_the_rest_of_the_disk_is_no_frame() -> None:
    header = struct.pack("<4sIQI", codec.MAGIC, 2**32 - 1, 0, 0)
    assert FRAMES == _frames(header + _journal(FRAMES))


def test_a_payload_that_holds_a_whole_frame_is_one_frame() -> None:
    inner = codec.encode(FRAMES[2], 0)
    outer = Steps(1, 2, inner)
    assert [outer, FRAMES[4]] == _frames(_journal([outer, FRAMES[4]]))


def test_seek_finds_a_place_at_or_before_the_offset_without_decoding() -> None:
    data = _journal(FRAMES, begin=100)
    starts = [offset for _, _, offset, _ in codec.scan(data)]
    for offset in (*starts, starts[2] + 1, starts[-1] + 10):
        assert max(start for start in starts if start <= offset) == 100 + codec.seek(data, offset)
    assert 0 == codec.seek(data, 5)
    assert 0 == codec.seek(b"", 5)


def test_a_header_says_its_offset_and_anything_else_says_none() -> None:
    assert 12345 == codec.offset_in(codec.encode(FRAMES[4], 12345))
    assert codec.offset_in(b"short") is None
    assert codec.offset_in(b"x" * codec.HEADER_BYTES) is None


def test_a_batch_is_read_as_it_was_written() -> None:
    batch = Batch([FRAMES[0], Block("s", 1, 2, 3, 3, b"packed"), *FRAMES[2:]], [FRAMES[3]], alive=False, backlog=9)
    assert batch == codec.decode_batch(codec.encode_batch(batch))


def test_a_batch_cannot_hold_bare_steps() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"items\[0\]"):
        codec.decode_batch(msgspec.msgpack.encode({"items": [FRAMES[1]]}))


def test_what_a_later_version_adds_is_passed_over() -> None:
    body = msgspec.msgpack.encode({"items": [], "gaps": [], "later": 1})
    assert Batch() == codec.decode_batch(body)
