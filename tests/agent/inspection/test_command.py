from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
import torch

from ammeter.__main__ import main
from tests.agent import object_store
from tests.agent.object_store import save_distributed, training_state
from tests.house import tree


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "last.pt"
    torch.save(training_state(), path)
    path.chmod(0o600)
    return path


def test_the_page_shows_what_is_printed_for_a_checkpoint_in_a_bucket(capsys: pytest.CaptureFixture[str]) -> None:
    state = training_state()
    del state["scheduler"], state["rng"]
    with object_store.serving() as bucket:
        with fsspec.open(
            f"{bucket}/step-500.pt", "wb", s3_additional_kwargs={"ServerSideEncryption": "AES256"}
        ) as file:
            torch.save(state, file)
        assert 0 == main(["checkpoint", f"{bucket}/step-500.pt"])
    _, *printed = capsys.readouterr().out.splitlines()
    page = (tree.ROOT / "docs" / "checkpoints.md").read_text()
    _, *shown = page.split("```text\ns3://")[1].split("```")[0].splitlines()
    assert [re.sub(r"[\d,]+ bytes", "N bytes", line) for line in printed] == [
        re.sub(r"[\d,]+ bytes", "N bytes", line) for line in shown
    ]


def test_a_whole_checkpoint_is_described_in_a_few_lines(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["checkpoint", str(saved)])
    first, *rows = capsys.readouterr().out.splitlines()
    assert str(saved) == first
    found = {row[:13].strip(): row[13:].strip() for row in rows}
    assert f"torch.save, {saved.stat().st_size:,} bytes" == found["format"]
    assert "yes" == found["complete"]
    assert found["finite"].startswith("yes, ")
    assert (
        "15 numbers of weights in float32, optimizer, scaler, scheduler, random state, step or epoch" == found["holds"]
    )
    assert "not found" not in found
    assert "mode 0600, which does not let everybody read it" == found["access"]
    assert "not known" == found["encryption"]


def test_what_is_not_in_it_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(training_state()["model"], tmp_path / "it")
    assert 0 == main(["checkpoint", str(tmp_path / "it")])
    assert "not found   optimizer, scaler, scheduler, random state, step or epoch" in capsys.readouterr().out


def test_a_broken_or_infinite_checkpoint_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = training_state()
    for tensor in state["model"].values():
        tensor[0] = math.inf
    torch.save(state, tmp_path / "it")
    assert 1 == main(["checkpoint", str(tmp_path / "it")])
    assert "no: 2 of" in capsys.readouterr().out
    save_distributed(state, tmp_path / "folder")
    (tmp_path / "folder" / ".metadata").unlink()
    assert 1 == main(["checkpoint", str(tmp_path / "folder")])
    printed = capsys.readouterr().out
    assert "complete    no: it has no .metadata" in printed
    assert "  finite " not in printed


def test_of_many_tensors_the_first_are_printed_and_json_has_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({f"t{at}": torch.tensor(math.nan) for at in range(9)}, tmp_path / "it")
    assert 1 == main(["checkpoint", str(tmp_path / "it")])
    assert "t0, t1, t2, t3, t4 and 4 more" in capsys.readouterr().out
    assert 1 == main(["checkpoint", "--json", str(tmp_path / "it")])
    document = json.loads(capsys.readouterr().out)
    assert [f"t{at}" for at in range(9)] == document["nonfinite"]
    assert (True, False) == (document["complete"], document["finite"])


def test_what_cannot_be_read_ends_with_2_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["checkpoint", str(tmp_path / "nothing")])
    assert f"ammeter checkpoint: {tmp_path}/nothing does not exist\n" == capsys.readouterr().err


class Settings:
    """An object of a program."""


def test_of_a_file_with_objects_of_a_program_nothing_is_claimed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({**training_state(), "settings": Settings()}, tmp_path / "it")
    assert 2 == main(["checkpoint", str(tmp_path / "it")])
    printed = capsys.readouterr().out
    assert "complete    not known: weights_only=True does not load it (UnpicklingError" in printed
    assert "  finite " not in printed
    assert 2 == main(["checkpoint", "--json", str(tmp_path / "it")])
    document = json.loads(capsys.readouterr().out)
    assert (None, None, None) == (document["complete"], document["finite"], document["contents"])


def test_a_name_cannot_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"a\x1b[2Jb": torch.tensor(math.nan)}, tmp_path / "it")
    main(["checkpoint", str(tmp_path / "it")])
    assert "\x1b" not in capsys.readouterr().out


def test_a_python_without_torch_is_told_to_use_the_one_that_trains(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['torch'] = None; from ammeter.__main__ import main; sys.exit(main(sys.argv[1:]))"
    ran = subprocess.run([sys.executable, "-c", hide, "checkpoint", "x"], capture_output=True, text=True, timeout=60)
    assert (2, "") == (ran.returncode, ran.stdout)
    assert "use the Python that trains" in ran.stderr


def test_an_empty_file_and_an_empty_path_are_called_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.pt"
    empty.touch()
    assert 1 == main(["checkpoint", str(empty)])
    assert "complete    no: the file is empty" in capsys.readouterr().out
    assert 2 == main(["checkpoint", ""])
    assert "PATH is empty; name a file or a folder" in capsys.readouterr().err
