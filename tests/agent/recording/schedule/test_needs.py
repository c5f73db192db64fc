"""The governor's needs are those that the verdicts declare."""

from __future__ import annotations

from ammeter.recording.schedule.budget import NEEDS, READINGS
from ammeter.verdicts.not_judged import VERDICTS

KIND = {
    "grad_norm": "norms",
    "grad_absmax": "full",
    "grad_agreement": "weights",
    "update_ratio": "weights",
    "lost_updates": "weights",
    "weights_nonfinite": "weights",
    "kernels.census": "kernels",
}
"""The reading that fills each column."""

UNSAMPLED = {"applied", "device_reserved_bytes", "device_utilization"}
"""Columns that need no budget."""


def test_the_governor_serves_what_every_verdict_needs() -> None:
    served = set()
    for verdict in VERDICTS:
        for need in verdict.needs:
            if need.column in UNSAMPLED:
                continue
            kind = KIND[need.column]
            served.add(kind)
            assert need.count / need.within <= NEEDS[kind].readings / NEEDS[kind].within, (verdict.id, need)
    assert set(READINGS) == served
