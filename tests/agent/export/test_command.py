"""The command line of `ammeter export`."""

from __future__ import annotations

from pathlib import Path

import pytest

from ammeter.__main__ import main
from ammeter.export import command, errors, to_csv
from ammeter.report.terminal import progress
from ammeter.wire.frames import Lost
from tests.agent.export.exporting import export, narrow, recorded, refusal
from tests.agent.report.reporting import RUN, written
from tests.agent.stream_builder import warm


def test_a_run_is_named_by_its_folder_its_id_or_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journals = tmp_path / "journals"
    recorded(warm(20), journals, name="fp16")
    monkeypatch.setenv("AMMETER_DIR", str(journals))
    for number, name in enumerate((journals / RUN, journals, RUN, "fp16")):
        assert RUN == export(capsys, name, "--to", "csv", tmp_path / f"{number}.csv")["run"]
    said = refusal(capsys, "fp32", "--to", "csv", tmp_path / "no.csv", code=2)
    assert f"there is no run 'fp32' in {journals}; pass its folder, or the id or name of a run there" in said


def test_of_several_runs_with_a_name_the_one_that_started_last_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AMMETER_DIR", str(tmp_path / "journals"))
    for run, started in (("a", 2), ("b", 9), ("c", 5)):
        written(warm(3), tmp_path / "journals", run=run, name="fp16", started=started)
    assert "b" == export(capsys, "fp16", "--to", "csv", tmp_path / "run.csv")["run"]


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(narrow("w").good().good(), tmp_path, name="fp16")
    target = tmp_path / "run.csv"
    assert 0 == main(["export", str(tmp_path / RUN), "--to", "csv", str(target)])
    printed = capsys.readouterr()
    assert f"exported fp16 to {target}: 2 rows with 10 values of 5 signals\n" == printed.out
    assert "" == printed.err


def test_the_command_says_which_records_the_journal_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = narrow("w").good()
    stream.frames.append(Lost("disk-full", steps=3))
    recorded(stream, tmp_path)
    words = ["export", str(tmp_path / RUN), "--to", "csv", str(tmp_path / "run.csv")]
    assert 0 == main(words)
    said = capsys.readouterr().err
    assert "the journal lacks records (3 steps at least), and so does the export: disk-full" in said
    assert {"disk-full": {"steps": 3, "events": 0}} == export(capsys, *words[1:], "--force")["lost"]


def test_the_help_names_every_format_and_what_its_target_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert [] == [name for name, target in command.TARGETS.items() if f"{name}: {target}" not in said]


def test_a_long_export_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    recorded(warm(1200), tmp_path)
    assert 0 == main(["export", str(tmp_path / RUN), "--to", "csv", str(tmp_path / "run.csv")])
    lines = capsys.readouterr().err.splitlines()
    assert [
        f"ammeter export: {part} of 3: rank_0 step {step}" for part, step in enumerate((499, 999, 1199), 1)
    ] == lines


def test_what_a_library_prints_is_no_part_of_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(warm(3), tmp_path)
    monkeypatch.setattr(to_csv, "write", lambda written: print("View run at: http://..."))
    assert RUN == export(capsys, tmp_path / RUN, "--to", "csv", tmp_path / "run.csv")["run"]


def test_a_missing_library_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(errors.ExportFailed) as raised:
        errors.library("parquet", "no_such_library")
    assert (
        "--to parquet needs a library that cannot be imported (No module named 'no_such_library'); "
        "install it with: pip install 'ammeter[parquet]'"
    ) == str(raised.value)
