"""`ammeter probe` as a person calls it: a map or JSON, an exit code, and errors with a remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked

pytestmark = pytest.mark.long

MODELS = "tests.agent.preflight.models"
ROOT = Path(__file__).parents[4]


def call(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ammeter", "probe", *words]
    return forked.run(
        command, imports=forked.LAUNCH, levels=1, cwd=ROOT, capture_output=True, timeout=280, env=dict(os.environ)
    )


def test_the_map_has_a_row_per_size_and_a_column_per_dtype_and_a_crash_does_not_end_it() -> None:
    done = call(f"{MODELS}:killed", "--batch-sizes", "1,2", "--dtypes", "bfloat16", "--steps", "3")
    assert 1 == done.returncode, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["float32", "bfloat16"] in lines
    assert ["batch_size=1", "holds", "holds"] in lines
    assert ["batch_size=2", "killed", "by", "SIGKILL", "killed", "by", "SIGKILL"] in lines
    assert "Precision does not hold in 2 of 4 cells, in 3 steps on one batch." in done.stdout


def test_the_journals_stay_in_the_folder_that_is_given(tmp_path: Path) -> None:
    done = call(
        *(f"{MODELS}:transformer", "--vary", "depth=1", "--dtypes", "float16"),
        *("--steps", "3", "--json", "--dir", str(tmp_path)),
    )
    assert 0 == done.returncode, done.stderr
    document = json.loads(done.stdout)
    assert ["float32", "float16"] == [cell["dtype"] for cell in document["cells"]]
    assert [{"depth": 1}] * 2 == [cell["given"] for cell in document["cells"]]
    assert 2 == len([run for run in tmp_path.iterdir() if run.is_dir()])


def test_a_factory_that_gives_no_model_ends_with_2_and_says_why() -> None:
    done = call(f"{MODELS}:bare")
    assert (2, "") == (done.returncode, done.stdout)
    assert "without example inputs; return (module, inputs)" in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--vary", "depth"), "'depth' is not NAME=VALUES; use such as depth=2,4,8"),
        (("--batch-sizes", "8,,9"), "'8,,9' has an empty value; use such as 8,32,128"),
        (("--steps", "1"), "'1' cannot be used; use a whole number from 2 on"),
        (("--timeout", "soon"), "'soon' cannot be used; use a number above 0"),
    ],
)
def test_a_wrong_option_is_named_with_its_remedy(words: tuple[str, str], text: str) -> None:
    done = call(f"{MODELS}:mlp", *words)
    assert 2 == done.returncode
    assert text in done.stderr
