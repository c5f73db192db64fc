"""Compression of stored columns by zstd."""

from __future__ import annotations

import threading

import zstandard

ZSTD_LEVEL = 1
"""Level of zstd. Planes are noise or nearly constant: level 3 is a little slower and its output a little larger."""

_of_thread = threading.local()


def decompress(data: bytes | memoryview, size: int) -> bytes:
    """Decompresses data of a known size, with the decompressor of this thread."""
    if not hasattr(_of_thread, "decompressor"):  # creating one takes longer than this decompression
        _of_thread.decompressor = zstandard.ZstdDecompressor()
    plain: bytes = _of_thread.decompressor.decompress(data, max_output_size=size)
    return plain
