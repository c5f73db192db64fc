"""Memory that many small arrays leave behind is returned to the system."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
from ammeter_server.process import memory

def resident_mib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) // 1024

memory.configure()
rows = [bytes(50_000) + b"x" for _ in range(2_000)]
rows = rows[::100]
before = resident_mib()
memory.trim()
print(before, resident_mib())
"""
"""Every hundredth of 100 MB stays, so that malloc alone returns nothing between them."""


def test_pages_between_arrays_in_use_return_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before > 90
    assert after < before - 80
