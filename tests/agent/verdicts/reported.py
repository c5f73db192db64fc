"""What all verdicts come to over the journal of a real run."""

from __future__ import annotations

from pathlib import Path

from ammeter import verdicts
from ammeter.verdicts.finding import Finding
from tests.agent.streams import views
from tests.agent.training import Seen, stream


def reported(folder: Path, seen: Seen) -> dict[str, Finding]:
    states: dict[str, bytes] = {}
    told: dict[str, Finding] = {}
    for view in views(stream(seen.run, folder)[1]):
        answer = verdicts.judge(states, view)
        assert {} == answer.faults
        states = answer.states
        told |= {finding.verdict: finding for finding in answer.findings}
    return told
