"""A run as the record of a model registry."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from ammeter.__main__ import main
from tests.agent.export.exporting import export, recorded, refusal
from tests.agent.report.reporting import RUN
from tests.agent.stream_builder import Stream, warm


def broken() -> Stream:
    stream = warm(40)
    stream.event("scaler.growth", **{"from": 65536.0, "to": 131072.0})
    for _ in range(60):
        stream.bad(65536.0, last=2)
    return stream


def test_a_record_has_precision_scaler_findings_commit_and_checkpoints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, changed = tmp_path / "last.pt", tmp_path / "older.pt"
    kept.write_bytes(b"weights")
    changed.write_bytes(b"longer than it was")
    stream = broken()
    for path in (changed, kept):
        contents = {"weights": {"float32": 9}, "whole": True}
        stream.event("checkpoint.saved", path=str(path), bytes=7, contents=contents, missing=["scaler"])
    stream.event("checkpoint.saved", path="", bytes=None, contents={})
    recorded(stream, tmp_path, environment={"git_commit": "0a1b2c", "torch": "2.13.0"})
    target = tmp_path / "model.json"
    written = export(capsys, tmp_path / RUN, "--to", "record", target)
    record = json.loads(target.read_text())
    assert (len(record["findings"]), 2) == (written["findings"], written["checkpoints"])
    assert (RUN, "0a1b2c", "float16") == (record["run"]["id"], record["commit"], record["precision"])
    assert (100, 40) == (record["summary"]["steps"], record["summary"]["applied"])
    assert {"step": 39, "from": 65536.0, "to": 131072.0} in record["scaler"]["last_changes"]
    assert "nonfinite-gradient" in {finding["verdict"] for finding in record["findings"]}
    assert all(finding["fix"] for finding in record["findings"])
    expected = {str(kept): hashlib.sha256(b"weights").hexdigest(), str(changed): None}
    assert expected == {save["path"]: save["sha256"] for save in record["checkpoints"]}
    assert {99} == {save["step"] for save in record["checkpoints"]}


def test_an_existing_record_is_replaced_only_by_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(warm(5), tmp_path)
    target = tmp_path / "model.json"
    target.write_text("mine")
    assert "exists" in refusal(capsys, tmp_path / RUN, "--to", "record", target)
    assert "mine" == target.read_text()
    export(capsys, tmp_path / RUN, "--to", "record", target, "--force")
    assert 5 == json.loads(target.read_text())["summary"]["steps"]


def test_the_command_claims_no_rows_of_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(warm(5), tmp_path)
    assert 0 == main(["export", str(tmp_path / RUN), "--to", "record", str(tmp_path / "model.json")])
    assert capsys.readouterr().out.rstrip().endswith("/model.json")
