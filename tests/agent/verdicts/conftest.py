"""Whatever a test here has judged, its texts are held against what was seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ammeter import verdicts
from ammeter.verdicts.framework.finding import Judged
from tests.agent.verdicts.claims import unfounded


@pytest.fixture(autouse=True)
def every_text_has_its_evidence(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of streams, of ranks and of pairs of runs."""
    asked, found = verdicts._apply, set[str]()

    def noting(*args: Any) -> Judged:
        answer = asked(*args)
        found.update(claim for finding in answer.findings for claim in unfounded(finding))
        return answer

    monkeypatch.setattr(verdicts, "_apply", noting)
    yield
    assert [] == sorted(found)
