"""Encoded bodies of one hostile item."""

from __future__ import annotations


def many(count: int, block: bytes) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + block * count


def body_of(*items: bytes) -> bytes:
    return b"\x81\xa5items\xdd" + len(items).to_bytes(4, "big") + b"".join(items)


def event_with(data: bytes) -> bytes:
    return b"\x85\xa4kind\xa5event\xa4name\xa3a.b\xa4step\x01\xa4time\x01\xa4data\x81\xa1x" + data


def hello_with(part: bytes) -> bytes:
    return b"\x84\xa4kind\xa5hello\xa3run\xa0\xa6stream\xa0" + part
