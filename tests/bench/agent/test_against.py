"""Two checkouts compared at the smallest size: here this checkout with itself."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from bench.agent import against
from bench.common.checkouts import AFTER, BEFORE, Checkout, CheckoutError
from bench.common.paths import ROOT
from tests import forked


def test_this_checkout_is_compared_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(against, "subprocess", forked.as_module())
    own = Checkout.at(ROOT)
    effort = against.Effort({"short": 2}, rounds=2, repeats=1)
    duration, ratio = against.measure({BEFORE: own, AFTER: own}, effort, repeats=1)
    for figure in (duration, ratio):
        assert (1, 1, 1) == (len(figure.before), len(figure.control), len(figure.after))
        assert 0 < figure.ratios[0] < 10


def test_the_order_of_the_sides_rotates_and_reverses() -> None:
    rounds = ["".join(against.order(list("abc"), number)) for number in range(6)]
    assert ["abc", "cba", "bca", "acb", "cab", "bac"] == rounds


def test_a_checkout_whose_agent_fails_is_named_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(against, "subprocess", forked.as_module(forked.LAUNCH))  # each checkout imports its own agent
    package = tmp_path / "agent" / "ammeter"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('broken on purpose')")
    broken = Checkout(tmp_path)
    effort = against.Effort({"short": 1}, rounds=1, repeats=1)
    with pytest.raises(CheckoutError, match=r"(?s)'before' ended.*broken on purpose"):
        against.measure({BEFORE: broken, AFTER: Checkout.at(ROOT)}, effort, repeats=1)


def test_a_folder_that_is_no_checkout_ends_the_comparison(tmp_path: Path) -> None:
    console = Console(record=True, width=400, file=io.StringIO())
    assert 2 == against.main(tmp_path, quick=True, repeats=None, console=console)
    assert "has no agent/ammeter" in console.export_text()
