"""Two collectors compared at the smallest size: here those of this checkout."""

from __future__ import annotations

import pytest

from bench.collector import against, senders
from bench.common.checkouts import AFTER, BEFORE, Checkout
from bench.common.paths import ROOT


def test_this_checkouts_collector_is_compared_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(senders, "IDLE_CHECK_SECONDS", 0.2)
    own = Checkout.at(ROOT)
    effort = against.Effort(ranks=1, rows=((50, 100),), rounds=1, requests=2, repeats=1)
    figures = against.measure({BEFORE: own, AFTER: own}, effort)
    names = ["CPU, 50 steps per request", "one curve, median", "list of runs, median", "scrape, median"]
    assert names == [figure.name for figure in figures]
    for figure in figures:
        assert 0 < figure.before[0]
        assert (1, 1, 1) == (len(figure.before), len(figure.control), len(figure.after))
