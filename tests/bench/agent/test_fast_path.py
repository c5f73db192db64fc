"""The benchmark of the fast path measures with and without it, and its conclusion follows from the savings."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bench.agent import fast_path
from bench.agent.comparison import Outcome, Sampling
from bench.agent.fast_path import Measurement, WithFastPath, WithoutFastPath
from bench.agent.peers import Coverage, Nothing
from tests.bench.agent.tiny import TINY

STEPS = 120
"""Steps in a block: more than a new run is followed, so that the fast path begins."""


def outcomes(name: str, *ratios: float) -> list[Outcome]:
    return [Outcome(name, Coverage(), False, [0.002] * 3, [0.002 * ratio] * 3, {"fast_steps": 0.9}) for ratio in ratios]


def measurement(with_it: list[float], without_it: list[float]) -> Measurement:
    repeats = {
        WithFastPath.name: outcomes(WithFastPath.name, *with_it),
        WithoutFastPath.name: outcomes(WithoutFastPath.name, *without_it),
    }
    return Measurement("bf16", repeats)


def test_only_the_peer_with_the_fast_path_uses_it() -> None:
    measured = fast_path.measure(TINY["fp32"], Sampling(pairs=2, steps=STEPS), repeats=1)
    assert [Nothing.name, WithFastPath.name, WithoutFastPath.name] == list(measured.repeats)
    assert 0 < measured.fast_share <= 1
    (without,) = measured.repeats[WithoutFastPath.name]
    assert 0 == without.self_reported["fast_steps"]
    assert 1 == len(measured.savings)


def test_the_saving_is_the_difference_of_the_ratios_in_each_repeat() -> None:
    measured = measurement([1.02, 1.03], [1.07, 1.06])
    assert [pytest.approx(0.05), pytest.approx(0.03)] == measured.savings
    assert "bf16: the fast path saves 4.0 % of a bare step (2 repeats: 3.0 to 5.0)" in measured.conclusion()


@pytest.mark.parametrize(("without_it", "is_worth_it"), [(1.06, True), (1.04, False)])
def test_the_fast_path_is_worth_it_from_the_required_saving_on(without_it: float, is_worth_it: bool) -> None:
    measurements = [measurement([1.02], [without_it])]
    assert is_worth_it == fast_path.is_worth_it(measurements)
    assert ("at least" if is_worth_it else "less than") in fast_path.verdict(measurements)


def test_the_result_file_has_the_table_and_the_conclusions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_path, "SHORT_STEPS", (TINY["bf16"],))
    fast_path.main(["--quick", "--write", str(tmp_path)])
    text = (tmp_path / "fast_path.md").read_text()
    assert all(f"| bf16 | {peer.name} |" in text for peer in fast_path.PEERS)
    assert "the fast path saves" in text


def test_a_quick_measurement_does_not_replace_the_committed_results(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fast_path.main(["--quick", "--write"])
    assert "--quick measures too little" in capsys.readouterr().err


def test_the_markdown_names_the_command() -> None:
    options = argparse.Namespace(pairs=2, steps=3, repeats=1, cpu_time=True)
    text = fast_path.markdown([fast_path.HEADINGS], "a machine", ["All: 4 %"], options)
    assert "`python -m bench.agent.fast_path --pairs 2 --repeats 1 --cpu-time --write`" in text
