"""A plan at its smallest, from measurement to result files."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bench.agent import __main__ as agent
from bench.agent import report, runner
from bench.agent.comparison import Outcome, Skipped
from bench.agent.peers import Coverage, Nothing
from bench.common import readme
from tests.bench.agent.tiny import PLAN

NOTHING = Coverage(*4 * ("–",))


def test_results_are_written_as_tables_and_json_and_the_readme_reads_the_first_table(tmp_path: Path) -> None:
    results = runner.measure(PLAN, ["ammeter", "do nothing"], Console(quiet=True))
    report.write(results, tmp_path, "make bench")
    result = json.loads((tmp_path / "agent.json").read_text())
    for name in (Nothing.name, "ammeter"):
        assert [2, 2, 2] == [len(section["repeats"][name]) for section in result["sections"]]
    names = [outcome["name"] for outcome in result["sections"][0]["outcomes"]]
    presets = [Nothing.name, "ammeter", "ammeter, preset light", "ammeter, preset full"]
    assert [*presets, "module hooks that do nothing"] == names
    assert presets == [outcome["name"] for outcome in result["sections"][2]["outcomes"]]
    assert [6] * 5 == [len(outcome["bare_seconds"]) for outcome in result["sections"][0]["outcomes"]]  # two repeats
    text = (tmp_path / "agent.md").read_text()
    first = readme.table(tmp_path / "agent.md").splitlines()
    assert 2 + len(names) == len(first)
    for name, row in ((Nothing.name, first[2]), ("ammeter", first[3])):
        assert re.fullmatch(rf"\| {re.escape(name)} \|.*\| \d\.\d+ \(\d\.\d+ to \d+\.\d+\) \|", row)
    assert "## Short steps: fp32" in text


def test_a_ratio_is_the_median_of_its_repeats_with_their_range() -> None:
    section = report.Section("a training", "bf16", short=False)
    for ratio in (1.25, 1.0, 1.5):
        section.add(
            [Outcome("slow", NOTHING, False, [1.0], [ratio]), Outcome("ours", NOTHING, False, [1.0], [ratio**0.1])]
        )
    section.add([Outcome("once", NOTHING, False, [1.0], [1.004]), Skipped("once", "failed"), Skipped("once", "failed")])
    assert ["1.25 (1.00 to 1.50)", "1.023 (1.000 to 1.041)", "1.004, 1 of 3", "–"] == [
        section.ratio(name) for name in ("slow", "ours", "once", "absent")
    ]
    section.add([Skipped("absent", "x is not installed")] * 3)
    remarks = report.remarks(report.Results(0.0, "", 3, [section]))
    assert [
        "a training: left out 2 times: once: failed.",
        "a training: left out: absent: x is not installed.",
    ] == remarks


def test_peers_beyond_the_time_limit_are_skipped_by_name() -> None:
    results = runner.measure(replace(PLAN, repeats=1, minutes=0.0), ["preset"], Console(quiet=True))
    assert 3 == len(results.sections)
    assert all([] == section.outcomes for section in results.sections)
    assert "bf16, 1,464 weights: left out: ammeter, preset light: the time was up." in report.remarks(results)


def test_quick_numbers_do_not_replace_the_committed_results(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        agent.main(["--quick", "--write"])
    assert "name another folder" in capsys.readouterr().err
