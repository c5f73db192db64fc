"""The loop, the place and the check that fail-open tests share."""

from __future__ import annotations

from pathlib import Path

from tests.agent.nursery import twins
from tests.agent.programs import bye, steps
from tests.agent.training import events

TRAIN = """
run = watch(model, optimizer, scaler)
for _ in range(30):
    step()
    run.log(metric=1.0)
print(bits(), flush=True)
run.close()
"""

ON_DISK = "from pathlib import Path; from ammeter.watching import delivery; delivery.TMPFS_FOLDER = Path('/nowhere')\n"
"""Where there is no tmpfs."""


def check_program(step_count: int, body: str, folder: Path) -> None:
    """Runs the program bare and watched, and compares their bits and the recorded steps."""
    both = twins(body, folder)
    assert [] == both.extra_lines()
    assert 0 == both.watched.code
    for frames in both.watched.streams():
        assert [] == events(frames, "probe.failed")
        assert step_count == len(steps(frames))
        assert bye(frames) is not None
