"""`ammeter stress` as a person calls it: a table or JSON, an exit code, and errors with a remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked

MODELS = "tests.agent.preflight.models"
ROOT = Path(__file__).parents[4]


def call(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ammeter", "stress", *words]
    return forked.run(
        command, imports=forked.LAUNCH, levels=1, cwd=ROOT, capture_output=True, timeout=240, env=dict(os.environ)
    )


def test_a_model_with_room_ends_with_0_and_a_table() -> None:
    done = call(f"{MODELS}:mlp", "--dtypes", "float16")
    assert 0 == done.returncode, done.stderr
    assert "linear" in done.stdout
    assert "rows hold, with room for operands 8 times as large or small" in done.stdout


def test_a_model_without_room_ends_with_1_and_names_the_operator() -> None:
    done = call(f"{MODELS}:sharp_transformer", "--json", "--dtypes", "float16")
    assert 1 == done.returncode, done.stderr
    document = json.loads(done.stdout)
    assert document["failing"] == sum(row.get("fails", False) for row in document["rows"]) > 0
    assert "matmul" in {row["operator"] for row in document["rows"] if row.get("fails")}


def test_a_call_that_cannot_run_ends_with_2_and_says_why() -> None:
    done = call(f"{MODELS}:raising")
    assert (2, "") == (done.returncode, done.stdout)
    assert "raised RuntimeError: no data set here (at " in done.stderr
    done = call(f"{MODELS}:bare")
    assert 2 == done.returncode
    assert "without example inputs; return (module, inputs)" in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--dtypes", "float8"), "'float8' is no dtype of this command; use float16, bfloat16, float32"),
        (("--factor", "0"), "'0' is not a factor; use a number from 1 on, such as 8"),
    ],
)
def test_a_wrong_option_is_named_with_its_remedy(words: tuple[str, str], text: str) -> None:
    done = call(f"{MODELS}:mlp", *words)
    assert 2 == done.returncode
    assert text in done.stderr
