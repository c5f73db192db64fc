"""Cases with every step read, and with the default budget."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bench.zoo import runner
from bench.zoo.plan import Case


def test_the_default_budget_reads_much_less(tmp_path: Path) -> None:
    case = Case("", "gpt", "bf16", "adamw", steps=150)
    (tmp_path / "dense").mkdir()
    (tmp_path / "frugal").mkdir()
    dense = runner.run(case, tmp_path / "dense", anomaly=False)
    frugal = runner.run(msgspec.structs.replace(case, frugal=True), tmp_path / "frugal", anomaly=False)
    assert 135 < sum("grad_agreement" in row.columns for row in dense.rows) < 150  # a slice that moves on has no pair
    assert 0 < sum("grad_agreement" in row.columns for row in frugal.rows) < 120
