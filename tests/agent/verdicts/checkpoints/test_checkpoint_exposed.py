"""checkpoint-exposed names the file, its mode, and what others can do with it; a private checkpoint is silent."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ammeter.probes.checkpoint import exposure
from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.training import stream as journal_of
from tests.agent.training import watching


def saved(stream: Stream, exposed: list[str], mode: str = "0644", path: str = "out/run.pt", by: str = "") -> Stream:
    contents = {"weights": {"float32": 1280}, "optimizer": True, "scaler": True, "whole": True}
    data = {"seconds": 0.1, "bytes": 9, "contents": contents, "missing": [], "mode": mode, "exposed": exposed, "by": by}
    return stream.event("checkpoint.saved", path=path, **data)


def found(stream: Stream) -> Finding:
    return findings(stream)["checkpoint-exposed"]


def test_the_first_exposed_checkpoint_is_told_with_its_path_and_mode() -> None:
    finding = found(saved(warm(30), ["read"]))
    assert ("ticket", 29, 29) == (finding.severity, finding.first_step, finding.opened_step)
    assert "Other users can read the checkpoints" == finding.title
    assert (
        "The checkpoint out/run.pt, saved at step 29, has mode 0644, and no folder above it is private" in finding.cause
    )
    assert "cd out && chmod 0700 . && chmod 0600 run.pt" in finding.fix
    assert "os.umask(0o077)" in finding.fix
    assert "weights_only" not in finding.fix


def test_who_can_replace_it_can_run_programs_as_its_owner() -> None:
    finding = found(saved(warm(30), ["read", "replace"], mode="0666"))
    assert "Other users can read and replace the checkpoints" == finding.title
    assert "with code that the next torch.load may run" in finding.cause
    assert "weights_only=True" in finding.fix
    assert ["read", "replace"] == finding.evidence["exposed"]


@pytest.mark.parametrize("mode", ["0600", "0640", "0644", ""])
def test_a_checkpoint_that_nobody_can_reach_is_silent(mode: str) -> None:
    assert {} == findings(saved(warm(30), [], mode=mode))


def test_it_is_told_once_however_often_it_is_saved() -> None:
    stream = saved(warm(30), ["read"])
    for _ in range(5):
        saved(stream.good(65536), ["read"])
    assert (29, 1) == (found(stream).last_step, found(stream).times)


def test_what_is_no_list_of_words_is_no_finding() -> None:
    stream = warm(30).event("checkpoint.saved", exposed="read", path=7)
    stream.event("checkpoint.saved", exposed=["dance"]).event("checkpoint.saved")
    assert {} == findings(stream)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that everybody can reach; pytest's own are private."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize(("mode", "expected"), [(0o644, ["checkpoint-exposed"]), (0o600, [])])
def test_a_program_that_saves_where_others_look_is_told(
    mode: int, expected: list[str], public: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Bilinear(4, 4, 2)
    optimizer = torch.optim.Adagrad(model.parameters())
    monkeypatch.setattr(exposure, "accounts", lambda: (exposure.Account(54321),))  # this machine may have nobody else
    path = public / "model.ckpt"
    path.touch()
    path.chmod(mode)
    with watching(tmp_path, model, optimizer) as seen:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(3, 4), torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    stream = Stream()
    stream.frames = journal_of(seen.run, tmp_path)[1]
    assert expected == list(findings(stream))
    if expected:
        assert f"cd {public} && chmod 0700 . && chmod 0600 {path.name}" in found(stream).fix
        assert "everybody with an account on the machine can copy the model" in found(stream).cause


def test_whoever_of_a_group_can_read_it_is_said_to() -> None:
    finding = found(saved(warm(30), ["read"], mode="0640", by="2 other accounts on the machine, as of its group,"))
    assert "2 other accounts on the machine, as of its group, can copy the model" in finding.cause


def test_a_long_path_is_whole() -> None:
    path = "/data/" + "deep/" * 60 + "run.pt"
    assert (
        f"cd {path.removesuffix('/run.pt')} && chmod 0700 . && chmod 0600 run.pt"
        in found(saved(warm(30), ["read"], path=path)).fix
    )
    assert "…" in found(saved(warm(30), ["read"], path="/data" + "/deep" * 100)).evidence["path"]
