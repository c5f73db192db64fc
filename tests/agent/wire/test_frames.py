from __future__ import annotations

import struct

import msgspec
import pytest

from ammeter.wire.frames import ABSENT, ABSENT_BITS, Schema, Tensor


def test_a_schema_is_named_by_its_content() -> None:
    one = Schema(
        stats=("grad.norm", "grad.zeros"), tensors=(Tensor("a", (2, 3), "float32"), Tensor("b", (), "float16"))
    )
    assert one.id == msgspec.json.decode(msgspec.json.encode(one), type=Schema).id
    assert one.id != msgspec.structs.replace(one, stats=("grad.norm",)).id
    assert (6, 1) == tuple(tensor.numel for tensor in one.tensors)
    assert len(one.scalars) + 4 == one.width
    assert slice(one.width - 2, one.width) == one.span("grad.zeros")
    with pytest.raises(ValueError, match="not in tuple"):
        one.span("grad.missing")


def test_absent_is_a_nan_that_arithmetic_does_not_make() -> None:
    assert ABSENT_BITS == struct.unpack("<I", ABSENT)[0]
    (absent,) = struct.unpack("<f", ABSENT)
    assert absent != absent
    assert struct.pack("<f", float("nan")) != ABSENT
    assert struct.pack("<f", float("inf") - float("inf")) != ABSENT
