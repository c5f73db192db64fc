"""Which difference between two checkouts counts as slower, and which folders can be compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.common import checkouts
from bench.common.checkouts import Checkout, CheckoutError, Figure, conclusion

CONTROL = [0.99, 1.01, 1.0, 1.02, 0.98]


def figure(after: list[float]) -> Figure:
    return Figure("step", "ms", [1.0] * len(after), CONTROL[: len(after)], after)


@pytest.mark.parametrize(
    ("after", "slower"),
    [
        ([1.05, 1.04, 1.06, 1.03, 1.05], True),
        ([1.05, 1.04, 1.06, 1.0, 1.05], True),  # one repeat may differ
        ([1.05, 1.04, 1.01, 1.0, 1.05], False),
        ([0.9, 0.9, 0.9, 0.9, 0.9], False),
    ],
)
def test_slower_is_a_figure_whose_repeats_exceed_every_control(after: list[float], slower: bool) -> None:
    assert slower == figure(after).is_slower
    assert ("slower: step" if slower else "no slower in any of 1 figures") == conclusion([figure(after)])


def test_few_repeats_allow_no_conclusion() -> None:
    assert not figure([9.0, 9.0]).is_slower
    assert "no conclusion from 2 repeats; 4 are needed" == conclusion([figure([9.0, 9.0])])


def test_a_row_shows_medians_and_the_spread_of_the_ratios() -> None:
    assert ("step, ms", "1", "1.05", "1.050 (1.030 to 1.060)", "1.000 (0.980 to 1.020)") == figure(
        [1.05, 1.04, 1.06, 1.03, 1.05]
    ).row


def test_a_folder_without_an_agent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckoutError, match="has no agent/ammeter"):
        Checkout.at(tmp_path)


def test_a_checkout_without_the_compiled_library_is_refused_where_this_one_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = tmp_path / "own" / "agent" / "ammeter", tmp_path / "other" / "agent" / "ammeter"
    for package in (own, other):
        package.mkdir(parents=True)
    monkeypatch.setattr(checkouts, "ROOT", tmp_path / "own")
    assert Checkout.at(tmp_path / "other").path == tmp_path / "other"
    (own / "reading.so").touch()
    with pytest.raises(CheckoutError, match="no compiled library"):
        Checkout.at(tmp_path / "other")
    (other / "reading.so").touch()
    assert Checkout.at(tmp_path / "other").path == tmp_path / "other"
