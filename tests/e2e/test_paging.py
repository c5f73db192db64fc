"""From a fault in the training process to the words that reach a person, and the same words without any server."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ammeter
from tests import forked
from tests.agent.training import Recipe, train
from tests.e2e.processes import Collector, Receiver, wait_for


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    started = Receiver()
    yield started
    started.stop()


@pytest.fixture
def collector(tmp_path: Path, receiver: Receiver) -> Iterator[Collector]:
    (tmp_path / "server").mkdir()
    started = Collector(tmp_path / "server", "--notify", receiver.apprise).start()
    yield started
    started.stop()


SHARED = (
    *("verdict", "severity", "first_step", "opened_step", "last_step"),
    *("tensor", "module", "caller", "cause", "fix", "evidence"),
)
"""What a finding of the report and an incident of the collector both say."""


def _poisoned(step: int, model: Any) -> None:
    """From step 12 on a NaN is born in backward behind the middle layer, and handed on to all before it."""
    if step == 12:
        model.middle.register_forward_hook(_nan_on_the_way_back)


def _nan_on_the_way_back(_: Any, __: Any, output: Any) -> None:
    output.register_hook(lambda gradient: gradient * float("nan"))


FAULTS = {
    "nonfinite-loss": Recipe(spoil=lambda step, loss: loss * float("nan") if step >= 15 else loss),
    "nonfinite-gradient": Recipe(hook=_poisoned),
    "healthy": Recipe(),
    "bf16": Recipe("bf16", clip=1.0),
}


def test_a_person_is_told_what_where_why_and_what_to_do(
    collector: Collector, receiver: Receiver, tmp_path: Path
) -> None:
    outcome = train(FAULTS["nonfinite-gradient"], watched=True, dir=tmp_path / "j", url=collector.url, name="night")
    wait_for(lambda: receiver.received, "a notification arrived", collector.log)
    _, notification = receiver.received[0]
    text = notification["title"] + notification["message"]
    for word in ("nonfinite-gradient", "night", "middle.bias", "step 12", f"{collector.url}/runs/{outcome.run}"):
        assert word in text
    for path in (f"/runs/{outcome.run}", "/runbooks/nonfinite-gradient"):
        assert collector.url + path in text
        with urllib.request.urlopen(collector.url + path) as page:
            assert 200 == page.status


@pytest.mark.parametrize("fault", FAULTS)
def test_report_says_without_a_server_what_the_collector_says(fault: str, collector: Collector, tmp_path: Path) -> None:
    outcome = train(FAULTS[fault], watched=True, dir=tmp_path / "j", url=collector.url)
    wait_for(lambda: collector.ask(f"/api/v1/runs/{outcome.run}")["state"] == "ended", "the run has ended")
    incidents = collector.ask(f"/api/v1/runs/{outcome.run}/incidents")["items"]
    reported = forked.run(
        [sys.executable, "-m", "ammeter", "report", str(tmp_path / "j" / outcome.run), "--json"],
        capture_output=True,
        timeout=60,
    )
    report = json.loads(reported.stdout)
    findings = [{key: finding[key] for key in SHARED} for finding in report["findings"]]
    assert sorted(findings, key=str) == sorted(
        ({key: incident[key] for key in SHARED} for incident in incidents), key=str
    )
    consequences = {
        finding["verdict"]: {c["verdict"] for c in finding["consequences"]} for finding in report["findings"]
    }
    assert consequences == {
        incident["verdict"]: {c["verdict"] for c in incident["consequences"]} for incident in incidents
    }
    assert ([fault] if fault in ("nonfinite-loss", "nonfinite-gradient") else []) == [
        finding["verdict"] for finding in findings
    ]
    assert (3 if findings else 0) == reported.returncode


def test_without_a_collector_training_works_and_the_journal_is_all_there(tmp_path: Path) -> None:
    outcome = train(FAULTS["nonfinite-loss"], watched=True, dir=tmp_path)
    found = {path.name for path in (tmp_path / outcome.run).glob("*/*")}
    assert {"alive", "00000000000000000000.seg"} == found - {"shipper"}  # the mirror's lock, where it was there in time
    assert ammeter.__version__
