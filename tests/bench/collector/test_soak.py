"""Live streams, the pages that show them, and the criteria of a soak."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.collector import servers, soak
from bench.collector.soak import SoakResult


def test_live_streams_are_followed_without_error(tmp_path: Path) -> None:
    server = servers.collector(tmp_path)
    try:
        found = soak.soak(server, 5.5, runs=2, ranks=2)
    finally:
        server.stop()
    assert [] == found.errors
    assert 4 == found.streams
    assert found.values >= 4 * 2 * 10 * 1200
    assert found.lags
    assert "4 live streams of 1,200 columns" in found.lines[0]


def test_a_soak_fails_by_errors_lag_memory_or_slow_senders() -> None:
    good = SoakResult(200, 600.0, 1, 1.0, [], [0.5, 2.9], [100, 120, 119, 122, 120, 121])
    assert good.passes
    for broken in (
        replace(good, errors=["ConnectionError"]),
        replace(good, lags=[3.1, 0.1]),
        replace(good, resident=[100, 120, 122, 126, 130, 134]),
        replace(good, sent=0.9),
    ):
        assert not broken.passes
