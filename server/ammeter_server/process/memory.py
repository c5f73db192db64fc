"""Settings of the garbage collector and of malloc for a process that lives long."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
"""Parameters of mallopt(3)."""

MMAP_THRESHOLD_BYTES = 2**20
"""Arrays of at least this size have pages of their own. These return to the system when the array is freed. By default,
glibc raises this threshold with each large array that is freed, up to 32 MiB, and then keeps the memory of the segments
of a compaction."""

MAX_ARENAS = 2
"""Number of malloc arenas. With one arena per thread, each keeps its own peak of memory."""


def configure() -> None:
    """Excludes the objects that exist now from garbage collection, and makes collections rarer.

    These objects live as long as the process. Each request creates hundreds of objects, which reference counting frees
    without the collector. Otherwise a collection of the 130,000 objects of a collector without a run stops every thread
    for a tenth of a second or more from time to time. The memory use is the same.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    with suppress(OSError, AttributeError):  # a C library other than glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        mallopt(M_ARENA_MAX, MAX_ARENAS)


def trim() -> None:
    """Returns the free pages of malloc to the system, including those between pages in use.

    Without it, a collector whose waiting rows were many for a moment keeps their memory: malloc returns only the end of
    each arena, and some small object usually lives there.
    """
    with suppress(OSError, AttributeError):  # a C library other than glibc
        ctypes.CDLL(None).malloc_trim(0)
