"""Scripts that know nothing of Ammeter, run by `ammeter run`: the same to the last bit, and seen."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ammeter import journal
from ammeter.report.diagnosis import diagnose
from ammeter.wire.frames import Hello
from tests import forked

pytestmark = pytest.mark.long

SCRIPTS = Path(__file__).with_name("scripts")


@dataclass(frozen=True)
class Case:
    """A command line, how many steps it makes, and a tensor by the name its author gave it."""

    words: tuple[str, ...]
    steps: int
    tensor: str
    precision: str


CASES = {
    "gpt in float16": Case(("gpt.py",), 13, "transformer.h.1.attn.c_attn.weight", "float16"),
    "gpt in bfloat16": Case(("gpt.py", "--dtype=bfloat16"), 13, "transformer.ln_f.bias", "bfloat16"),
    "gpt in float32, compiled": Case(
        ("gpt.py", "--dtype=float32", "--compile=True"), 13, "transformer.wte.weight", "float32"
    ),
    "gpt in float16, compiled": Case(("gpt.py", "--compile=True"), 13, "transformer.wpe.weight", "float16"),
    "cnn": Case(("cnn.py",), 20, "conv1.weight", "float32"),
    "cnn with workers": Case(("cnn.py", "--workers", "2", "--epochs", "1"), 10, "fc2.bias", "float32"),
    "a trainer as a class": Case(("fine_tune.py",), 14, "backbone.layers.1.linear1.weight", "bfloat16"),
}


FRESH = "gpt in float16"
"""This case has new interpreters, as a user has; those of the others are forks of a process that has imported torch."""


def run(words: tuple[str, ...], folder: Path, *, watched: bool, fresh: bool) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / words[0]), *words[1:]]
    if watched:
        command = [sys.executable, "-m", "ammeter", "run", "--dir", str(folder), "--", *command]
    if fresh:
        return subprocess.run(command, capture_output=True, text=True, timeout=240)
    return forked.run(command, capture_output=True, timeout=240, imports=forked.LAUNCH, levels=int(watched))


@pytest.mark.parametrize("name", CASES)
def test_an_unchanged_script_prints_the_same_to_the_last_bit_and_is_seen(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    bare, watched = (
        run(case.words, tmp_path / "runs", watched=is_watched, fresh=name == FRESH) for is_watched in (False, True)
    )
    assert (0, 0) == (bare.returncode, watched.returncode), watched.stderr
    assert bare.stdout == watched.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    report = diagnose(folder)
    document = report.as_json()
    assert [] == document["findings"]
    assert (case.steps, case.precision) == (document["summary"]["steps"], document["run"]["precision"])
    assert Path(case.words[0]).stem == document["run"]["name"]
    assert document["summary"]["loss"]["last"] is not None
    assert document["summary"]["grad_norm"]["last"] is not None
    assert case.tensor in names(folder)


def names(folder: Path) -> list[str]:
    (stream,) = journal.streams(folder)
    hello = [entry.frame for entry in journal.read(stream) if isinstance(entry.frame, Hello)][-1]
    return [tensor.name for tensor in hello.schema.tensors]


def test_what_breaks_in_an_unchanged_script_is_named(tmp_path: Path) -> None:
    done = run(("gpt.py", "--poison_at=6", "--max_iters=14"), tmp_path, watched=True, fresh=False)
    assert 0 == done.returncode, done.stderr
    assert "(nonfinite-loss, page); read it with: ammeter report " in done.stderr
    (folder,) = tmp_path.iterdir()
    (finding,) = diagnose(folder).as_json()["findings"]
    assert ("nonfinite-loss", 6) == (finding["verdict"], finding["first_step"])


def test_torchrun_that_starts_its_workers_again_is_one_run_with_four_streams(tmp_path: Path) -> None:
    script, over = tmp_path / "script.py", tmp_path / "over"
    script.write_text(
        "import os, sys, time, torch\n"
        "model = torch.nn.Linear(3, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(4):\n"
        "    model(torch.ones(1, 3)).sum().backward(); optimizer.step(); optimizer.zero_grad(); time.sleep(0.1)\n"
        "first, rank = os.environ['TORCHELASTIC_RESTART_COUNT'] == '0', os.environ['RANK']\n"
        f"while first and rank == '1' and not os.path.exists({str(over)!r}): time.sleep(0.01)\n"
        "if first and rank == '1': sys.exit(3)\n"
        f"if first: open({str(over)!r}, 'w').close(); time.sleep(60)\n"
    )
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", str(script)]
    command = [sys.executable, "-m", "ammeter", "run", "--dir", str(tmp_path / "runs"), "--", sys.executable, *words]
    done = forked.run(command, imports=forked.LAUNCH, levels=2, capture_output=True, timeout=120)
    assert 0 == done.returncode, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert 4 == len(journal.streams(folder))
    document = diagnose(folder).as_json()
    assert [] == document["findings"]
    goodbyes = sorted(str(bye) for bye in goodbyes_of(folder))
    assert ["exit", "exit", "exit", "signal"] == goodbyes


def goodbyes_of(folder: Path) -> list[Any]:
    ends = [[entry.frame for entry in journal.read(stream)][-1] for stream in journal.streams(folder)]
    return [getattr(end, "reason", None) for end in ends]
