"""Threads that decode the same classes at once, in a process that has decoded none before, do not crash it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, threading

sys.setswitchinterval(1e-6)
import msgspec
from ammeter import verdicts
from ammeter.verdicts.framework.finding import Finding

states = {verdict: msgspec.msgpack.encode(verdict.state()) for verdict in verdicts.ALL}
finding = {"verdict": "", "severity": "page", "first_step": 0, "opened_step": 0, "last_step": 0, "cause": "", "fix": ""}
barrier = threading.Barrier(8)

def decode():
    barrier.wait()
    for verdict, packed in states.items():
        verdicts._state(verdict, packed)
    msgspec.convert(finding, Finding)

threads = [threading.Thread(target=decode) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_states_and_findings_are_decoded_by_many_threads_at_once() -> None:
    for _ in range(3):  # without decodable() four of five such processes ended with a segmentation fault
        ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
        assert (0, "") == (ended.returncode, ended.stderr)
