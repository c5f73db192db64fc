"""Journals of the release, read and sent by this tree."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy
from pathlib import Path

import pytest

from tests.compat.answers import lacking
from tests.compat.processes import Collector
from tests.compat.release import JOURNALS, NEW, REPORTS
from tests.e2e.processes import wait_for

RECORDED = json.loads(REPORTS.read_text())
WORDS = ("title", "cause", "fix")
"""Sentences for people; a release may change their wording."""


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    return Path(shutil.copytree(JOURNALS, tmp_path / "journals"))


def report(path: Path, *options: str) -> tuple[int, str]:
    done = NEW.process("ammeter", "report", str(path), *options)
    return done.returncode, done.stdout


@pytest.mark.parametrize("run", sorted(RECORDED))
def test_the_report_of_a_journal_of_the_release_says_the_same(run: str, journals: Path) -> None:
    code, text = report(journals / run, "--json")
    assert RECORDED[run]["exit"] == code
    produced, recorded = json.loads(text), deepcopy(RECORDED[run]["report"])
    summary = produced["summary"]
    open_verdicts = {entry["verdict"] for entry in summary["not_judged"]}
    assert set(recorded["summary"].pop("checked")) <= {*summary["checked"], *open_verdicts}
    for part in ("run", "summary", "baseline"):
        assert [] == list(lacking(recorded[part], produced[part], part))
    assert len(recorded["findings"]) == len(produced["findings"])
    for old, new in zip(recorded["findings"], produced["findings"], strict=True):
        assert {name: value for name, value in old.items() if name not in (*WORDS, "consequences")} == {
            name: new[name] for name in old if name not in (*WORDS, "consequences")
        }
        assert all(new[name] for name in WORDS)
        assert [found["verdict"] for found in old["consequences"]] == [
            found["verdict"] for found in new["consequences"]
        ]


def test_journals_of_the_release_are_sent_to_a_new_collector(journals: Path, tmp_path: Path) -> None:
    with Collector(NEW, tmp_path, f"sqlite:///{tmp_path / 'collector.db'}") as collector:
        NEW.run("ammeter", "ship", str(journals), "--once", "--url", collector.url)
        wait_for(lambda: len(collector.items("/api/v1/incidents")) == 1, "they are judged", collector.log)
        for run in collector.items("/api/v1/runs"):
            assert "ended" == run["state"]
            assert RECORDED[run["id"]]["report"]["summary"]["steps"] == run["counters"]["steps"]
        assert sorted(RECORDED) == sorted(run["id"] for run in collector.items("/api/v1/runs"))


def test_the_gate_compares_runs_of_the_release(journals: Path) -> None:
    names = {RECORDED[run]["report"]["run"]["name"]: run for run in RECORDED}
    pair = [str(journals / names[name]) for name in ("candidate", "reference")]
    NEW.run("ammeter", "gate", *pair, "--slower", "1000", "--ignore", "steps", "--json")
