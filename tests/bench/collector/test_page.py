"""The benchmark of the page, at a small size."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.collector import page

pytestmark = pytest.mark.long


def test_the_times_of_the_page_are_measured_in_a_browser(tmp_path: Path) -> None:
    assert 0 == page.main(["--quick", "--write", str(tmp_path)])
    text = (tmp_path / "page.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith(("| run of 4,000", "| list of 30"))]
    assert 6 == len(rows), text
    for row in rows:
        middle, low, high = (float(cell.replace(",", "")) for cell in row.split("|")[2:5])
        assert 0 < low <= middle <= high, row
