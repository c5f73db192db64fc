"""`ammeter report` reads journals of every shape and says what a person and a program need to know."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import ammeter
from ammeter import journal
from ammeter.__main__ import main
from ammeter.journal import Journal, find
from ammeter.report import diagnosis
from ammeter.report.diagnosis import ReportedFinding, _keep_latest
from ammeter.verdicts.framework.finding import Finding
from ammeter.wire.frames import Bye, Hello, Lost, Schema
from tests.agent import streams, streams_kernels  # noqa: F401 - registers its streams
from tests.agent.report.reporting import RUN, as_json, as_text, written
from tests.agent.stream_builder import Stream, warm
from tests.agent.streams import BROKEN


@pytest.mark.parametrize("verdict", BROKEN)
def test_the_json_names_what_broke_the_run(verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = BROKEN[verdict]()
    written(stream if verdict == "run-lost" else stream.bye(), tmp_path)
    (finding,) = as_json(capsys, tmp_path)["findings"]
    assert verdict == finding["verdict"]
    members = "severity first_step opened_step last_step tensor module caller cause fix evidence consequences"
    assert set(members.split()) <= set(finding)


def test_a_page_of_text_has_the_facts_the_cause_and_the_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(
        BROKEN["nonfinite-gradient"]().bye(), tmp_path, name="gpt", project="books", environment={"torch": "2.13.0"}
    )
    text = as_text(capsys, tmp_path)
    for words in (
        "gpt · books",
        f"{RUN}, ended (closed)",
        "1 of 1 rank, node7, float16, torch 2.13.0",
        "70, 40 applied, 30 skipped (43 %)",
        "65536 (2^16) at first",
        "records lost none",
        "PAGE Non-finite gradients at blocks.1.fc with a finite loss nonfinite-gradient",
        "That points to the backward pass of blocks.1.fc.",
        "since 40, found at 42, last at 69",
        "Loss scale collapsed from 65536 to 0.000122 (scale-collapse, page, since step 40)",
        "Next: fix nonfinite-gradient. Its runbook: ammeter runbook nonfinite-gradient",
    ):
        assert words in text


def test_what_the_collector_does_not_take_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = written(warm(50).bye(), tmp_path)
    assert [] == as_json(capsys, tmp_path)["summary"]["undelivered"]
    assert "The collector does not have" not in as_text(capsys, tmp_path)
    journal.note_refusal(stream, "stream a is not delivered")
    assert ["stream a is not delivered"] == as_json(capsys, tmp_path)["summary"]["undelivered"]
    assert "The collector does not have all of this run: stream a is not delivered." in as_text(capsys, tmp_path)


def test_a_healthy_run_is_told_what_was_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(warm(50).bye(), tmp_path)
    text = as_text(capsys, tmp_path)
    assert "No verdict was reached. " in text
    summary = as_json(capsys, tmp_path)["summary"]
    assert {"loss-not-scaled", "nonfinite-loss"} <= set(summary["checked"])
    unjudged = {entry["verdict"] for entry in summary["not_judged"]}
    assert {"stagnation", "sign-flip"} <= unjudged
    assert not unjudged & set(summary["checked"])
    judged = len(summary["checked"])
    assert f"{judged} of {judged + len(unjudged)} verdicts were judged; --json names them." in text
    assert "Not judged, too few readings (the run is too short): " in text
    assert "gradient-spike (50 of 65 gradient norms)" in text
    assert "65536 (2^16) throughout; 0 growths, 0 backoffs" in text
    assert "No loss was recorded" not in text


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["--version"])
    assert f"ammeter {ammeter.__version__}\n" == capsys.readouterr().out


def test_what_could_not_be_seen_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(Stream().step(applied=1).step(applied=1).bye(), tmp_path)
    text = as_text(capsys, tmp_path)
    assert "No loss was recorded" in text
    assert "No gradient was read" in text


def test_a_run_that_was_never_finite_is_not_told_as_unseen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nan = float("nan")
    written(Stream().good(loss=nan, norm=nan).good(loss=nan, norm=nan).bye(), tmp_path)
    text = as_text(capsys, tmp_path)
    assert "No finite loss was recorded. No finite gradient norm was read" in text
    assert "so nobody can say" not in text


def test_a_run_without_a_step_is_asked_about_its_optimizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(Stream().bye(), tmp_path)
    assert "an optimizer steps, but not one that watch() was given" in as_text(capsys, tmp_path)


@pytest.mark.parametrize(
    ("code", "make"),
    [(0, lambda: warm().bye()), (0, BROKEN["overflow-storm"]), (3, BROKEN["scale-collapse"])],
    ids=["healthy", "ticket", "page"],
)
def test_the_exit_code_says_whether_to_wake_a_person(code: int, make: Callable[[], Stream], tmp_path: Path) -> None:
    stream = make()
    written(stream if isinstance(stream.frames[-1], Bye) else stream.bye(), tmp_path)
    assert code == main(["report", str(tmp_path)])


@pytest.mark.parametrize("path", ["nowhere", "empty", "file"])
def test_a_path_without_a_journal_is_a_clear_error(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    assert 2 == main(["report", str(tmp_path / path)])
    error = capsys.readouterr().err
    assert error.startswith("ammeter report: ")
    assert str(tmp_path / path) in error


def test_a_stream_a_run_and_the_folder_of_all_runs_are_all_understood(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = written(warm().bye(), tmp_path)
    for path in (stream, stream.parent, tmp_path):
        assert RUN == as_json(capsys, path)["run"]["id"]


def test_without_a_path_it_is_the_newest_run_in_ammeter_dir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AMMETER_DIR", str(tmp_path))
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    old = written(warm().bye(), tmp_path, run=first)
    written(warm().bye(), tmp_path, run=second)
    for path in (old, old / "alive"):
        os.utime(path, (1, 1))
    assert second == as_json(capsys)["run"]["id"]
    assert [first, second] == [document["run"]["id"] for document in as_json(capsys, "--all")["items"]]


def test_the_newest_run_is_the_one_that_started_last_whatever_was_written_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AMMETER_DIR", str(tmp_path))
    names = {started: str(uuid.uuid4()) for started in (3, 1, 2)}
    for started, run in names.items():
        journal = Journal(tmp_path / run / uuid.uuid4().hex)
        journal.hello(Hello(run, journal.folder.name, Schema(), started=started))
        journal.append(Bye("exit", 0, 9))
        journal.close()
        for path in (journal.folder, journal.folder / "alive"):
            os.utime(path, (100 - started, 100 - started))
    assert names[3] == as_json(capsys)["run"]["id"]
    assert [names[at] for at in (1, 2, 3)] == [document["run"]["id"] for document in as_json(capsys, "--all")["items"]]


def test_who_died_without_a_goodbye_is_lost_and_who_lives_is_running(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(warm(), tmp_path / "died")
    document = as_json(capsys, tmp_path / "died")
    assert ["run-lost"] == [finding["verdict"] for finding in document["findings"]]
    assert "lost" == document["run"]["state"]
    living = Journal(tmp_path / "lives" / RUN / uuid.uuid4().hex)
    living.hello(Hello(RUN, living.folder.name, Schema()))
    document = as_json(capsys, tmp_path / "lives")
    living.close()
    assert [] == document["findings"]
    assert "running" == document["run"]["state"]
    assert document["run"]["ended"] is None


def test_what_several_ranks_have_is_told_once_with_the_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1, 2):
        stream = BROKEN["gradient-underflow"]() if rank else warm(60)
        written(stream.bye(), tmp_path, rank=rank, world_size=3)
    document = as_json(capsys, tmp_path)
    (finding,) = document["findings"]
    assert ([1, 2], 1) == (finding["ranks"], finding["rank"])
    assert (3, 3) == (document["run"]["world_size"], document["run"]["ranks_reporting"])
    assert "ranks 1, 2; the numbers above are those of rank 1" in as_text(capsys, tmp_path)


def test_a_finding_of_one_later_rank_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        stream = BROKEN["gradient-underflow"]() if rank else warm(60)
        written(stream.bye(), tmp_path, rank=rank, world_size=2)
    (finding,) = as_json(capsys, tmp_path)["findings"]
    assert ([1], 1) == (finding["ranks"], finding["rank"])
    assert "rank 1" in as_text(capsys, tmp_path)


def test_the_report_does_not_depend_on_how_many_rows_are_read_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = written(BROKEN["nonfinite-gradient"]().bye(), tmp_path)
    whole = diagnosis.diagnose(stream).as_json()
    for rows in (1, 7, 50):
        monkeypatch.setattr(find, "MAX_ROWS", rows)
        assert whole == diagnosis.diagnose(stream).as_json()


def test_losses_of_records_are_counted_by_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = warm()
    stream.frames += [Lost("journal-cap", 7, 2), Lost("journal-cap", 1, 0)]
    written(stream.bye(), tmp_path)
    assert {"journal-cap": {"steps": 8, "events": 2}} == as_json(capsys, tmp_path)["summary"]["lost"]
    assert "records lost journal-cap: 8 steps, 2 events" in as_text(capsys, tmp_path)


def test_a_torn_tail_costs_only_its_frame(tmp_path: Path) -> None:
    stream = written(warm(40), tmp_path)
    (segment,) = stream.glob("*.seg")
    segment.write_bytes(segment.read_bytes()[:-9])
    assert 39 == diagnosis.diagnose(stream).as_json()["summary"]["steps"]


def test_columns_may_change_on_the_way(tmp_path: Path) -> None:
    stream = warm(20)
    hello = stream.frames[0]
    assert isinstance(hello, Hello)
    stream.schema = msgspec.structs.replace(stream.schema, scalars=(*stream.schema.scalars, "accuracy"))
    stream.frames.append(msgspec.structs.replace(hello, schema=stream.schema))
    for _ in range(20):
        stream.good(65536, accuracy=0.5)
    summary = diagnosis.diagnose(written(stream.bye(), tmp_path)).as_json()["summary"]
    assert (40, 40) == (summary["steps"], summary["applied"])


def test_a_thousand_steps_are_all_read(tmp_path: Path) -> None:
    folder = written(warm(1000).bye(), tmp_path)
    assert 1000 == diagnosis.diagnose(folder).as_json()["summary"]["steps"]


def test_every_stream_of_the_tests_can_be_reported(tmp_path: Path) -> None:
    for name, make in {**streams.HEALTHY, **BROKEN}.items():
        document = diagnosis.diagnose(written(make(), tmp_path / name.replace(" ", "-")))
        assert {} == document.faults


def test_what_a_finding_says_is_not_said_again_below_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(BROKEN["fp32-fallback"]().bye(), tmp_path / "two")
    assert {"fp32-fallback"} == {event["verdict"] for event in as_json(capsys, tmp_path / "two")["seen"]}
    assert "also seen" not in as_text(capsys, tmp_path / "two")
    little = {"op": "mm", "module": "head", "reason": "policy", "flops_share": 0.01}
    written(warm(5).event("kernel.fallback", **little).bye(), tmp_path / "one")
    assert "also seen step 4, 1.0 % of the FLOPs, mm in head" in as_text(capsys, tmp_path / "one")


def test_a_checkpoint_that_others_can_read_is_told_and_is_not_the_last_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = {"weights": {"float32": 1280}, "optimizer": True, "scaler": True, "whole": True}
    saved = warm(30).event("checkpoint.saved", path="/x/run.pt", contents=contents, missing=[], exposed=["read"])
    assert 0 == main(["report", str(written(saved.good(65536).bye(), tmp_path))])
    out = " ".join(capsys.readouterr().out.split())
    assert "Other users can read the checkpoints checkpoint-exposed" in out
    assert "No verdict on the training was reached, but see above." in out
    assert "Next: fix" not in out


def test_severity_in_json_is_the_gravest_that_the_finding_had_with_what_came_of_it() -> None:
    ticket = Finding("run-stalled", "ticket", 1, 2, 3, "why", "do", "It")
    page = msgspec.structs.replace(ticket, severity="page")
    last: dict[str, Finding] = {}
    for finding, severity in ((ticket, "ticket"), (page, "page"), (ticket, "page")):
        _keep_latest(last, [finding])
        assert severity == last["run-stalled"].severity
    worse = msgspec.structs.replace(page, verdict="scale-collapse")
    assert "ticket" == ReportedFinding(ticket, [0], []).severity
    assert "page" == ReportedFinding(ticket, [0], [worse]).severity
