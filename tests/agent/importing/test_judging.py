"""An imported run is judged by the verdicts whose columns it has, and says nothing about the rest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ammeter.__main__ import main
from ammeter.verdicts import BY_ID, STREAM_VERDICTS
from tests.agent.importing.imported import bring, loss_history, report, table, verdicts
from tests.agent.report.reporting import as_json, as_text
from tests.e2e.processes import Collector, wait_for

pytestmark = pytest.mark.long


def lines(losses: list[float], **others: Sequence[object]) -> list[str]:
    rows = zip(*others.values(), strict=True) if others else [()] * len(losses)
    head = ",".join(["step", "loss", *others])
    return [
        head,
        *(",".join(map(str, (step, loss, *more))) for step, (loss, more) in enumerate(zip(losses, rows, strict=True))),
    ]


def test_a_loss_that_rises_without_end_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = table(tmp_path, lines(loss_history(diverges=250)))
    found = bring(capsys, file, "--from", "csv", "--dir", tmp_path / "runs")
    assert ["diverged"] == list(verdicts(found["path"]))


def test_a_healthy_history_has_no_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = table(tmp_path, lines(loss_history(), grad_norm=[1.0] * 400, scale=[65536.0] * 400))
    path = bring(capsys, file, "--from", "csv", "--dir", tmp_path / "runs")["path"]
    assert {} == verdicts(path)
    assert "No verdict was reached" in as_text(capsys, path)


def test_a_nan_is_found_and_nothing_is_said_of_its_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bring(capsys, table(tmp_path, lines(loss_history(nan=300))), "--from", "csv", "--dir", tmp_path)["path"]
    assert {"nonfinite-loss": 300} == verdicts(path)
    (reported,) = report(path).findings
    assert "The training loss was NaN at step 300" in reported.finding.cause
    for claim in ("was skipped", "was applied", "weights", "in float32 there"):
        assert claim not in reported.finding.cause


def test_skipped_steps_that_the_history_gives_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overflow = [int(step >= 360) for step in range(400)]
    scale = [65536.0 * 0.5 ** max(0, step - 360) for step in range(400)]
    file = table(tmp_path, lines(loss_history(), overflow=overflow, loss_scale=scale))
    words = (file, "--from", "csv", "--dir")
    assert {} == verdicts(bring(capsys, *words, tmp_path / "without")["path"])
    found = bring(capsys, *words, tmp_path / "with", "--skipped", "overflow")
    assert ("overflow", "loss_scale") == (found["columns"]["skipped"], found["columns"]["scale"])
    assert 360 == verdicts(found["path"])["scale-collapse"]
    summary = as_json(capsys, found["path"])["summary"]
    assert (360, 40) == (summary["applied"], summary["skipped"])


def test_only_verdicts_whose_columns_are_there_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bring(capsys, table(tmp_path, lines(loss_history())), "--from", "csv", "--dir", tmp_path)["path"]
    summary = as_json(capsys, path)["summary"]
    assert ["diverged", "nonfinite-loss"] == [name for name in summary["checked"] if BY_ID[name] in STREAM_VERDICTS]
    reasons = {entry["verdict"]: (entry["reason"], entry["column"]) for entry in summary["not_judged"]}
    assert ("not-in-history", "grad_norm") == reasons["nonfinite-gradient"]
    assert "not-in-history" == reasons["clip-before-unscale"][0] == reasons["run-lost"][0]
    assert {"diverged", "nonfinite-loss"}.isdisjoint(reasons)


def test_the_report_says_where_the_run_comes_from_and_nothing_that_was_not_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = table(tmp_path, lines(loss_history(), scale=[65536.0] * 400))
    path = bring(capsys, file, "--from", "csv", "--dir", tmp_path / "runs", "--name", "old")["path"]
    text = as_text(capsys, path)
    assert text.startswith("old · default")
    assert "imported from csv with ammeter" in text
    assert "ended (closed: the imported history ends here)" in text
    assert "when not in the history" in text
    assert "steps 400 scale 65536 (2^16) throughout loss" in text
    assert "Not judged, because the imported history does not have what they read: " in text
    assert "The imported history has no gradient norm." in text
    for word in ("applied", "skipped", "growth", "backoff", "overhead", "1 of 1 rank", "run.log"):
        assert word not in text
    summary = as_json(capsys, path)["summary"]
    assert [None] * 4 == [summary[name] for name in ("applied", "skipped", "scale_growths", "scale_backoffs")]
    main(["report", path, "--postmortem"])
    document = capsys.readouterr().out
    assert "| steps | 400 |" in document
    assert "| when | not in the history |" in document
    assert "applied" not in document.partition("## Findings")[0]


def test_a_history_without_a_loss_says_how_to_name_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = table(tmp_path, ["step,objective", *(f"{step},1.0" for step in range(100))])
    path = bring(capsys, file, "--from", "csv", "--dir", tmp_path / "runs")["path"]
    assert "no metric that is known as the loss; `ammeter import --loss NAME` names it" in as_text(capsys, path)
    named = bring(capsys, file, "--from", "csv", "--dir", tmp_path / "named", "--loss", "objective")
    assert "objective" == named["columns"]["loss"]


def test_an_imported_run_is_shipped_and_judged_by_the_collector(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = table(tmp_path, lines(loss_history(diverges=250)))
    run = bring(capsys, file, "--from", "csv", "--dir", tmp_path / "runs", "--name", "old")["run"]
    (tmp_path / "collector").mkdir()
    collector = Collector(tmp_path / "collector").start()
    try:
        assert 0 == main(["ship", str(tmp_path / "runs"), "--once", "--url", collector.url])
        asked = f"/api/v1/runs/{run}"
        incidents = wait_for(lambda: collector.ask(f"{asked}/incidents")["items"], "an incident is opened")
        assert ["diverged"] == [incident["verdict"] for incident in incidents]
        document = collector.ask(asked)
        assert ("old", "ended", 399) == (document["name"], document["state"], document["last_step"])
        assert "not-in-history" in {entry["reason"] for entry in document["not_judged"]}
    finally:
        collector.stop()
