from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard

from ammeter.wire import zstd


def test_what_was_compressed_is_decompressed_in_any_thread() -> None:
    def there_and_back(number: int) -> bool:
        data = random.Random(number).randbytes(1000) + bytes(number)
        level, has_size = number % 3 + 1, number % 2 == 0
        return data == zstd.decompress(zstd.compress(data, level, has_size=has_size), len(data))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(there_and_back, range(2000)))


@pytest.mark.parametrize(("has_size", "declared"), [(True, 1000), (False, -1)])
def test_the_size_is_declared_if_it_should_be(has_size: bool, declared: int) -> None:
    assert declared == zstandard.frame_content_size(zstd.compress(bytes(1000), has_size=has_size))


def test_data_that_are_not_valid_are_refused_and_the_next_are_decompressed() -> None:
    packed = zstd.compress(b"a loss of 2.31" * 9)
    for broken in (b"", packed[:-1], packed[:9] + bytes(20)):
        with pytest.raises(zstandard.ZstdError):
            zstd.decompress(broken, 126)
        assert b"a loss of 2.31" * 9 == zstd.decompress(packed, 126)
