"""`ammeter compare` on runs that the real agent has watched, with several seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter.__main__ import main

Output = pytest.CaptureFixture[str]


def train(folder: Path, name: str, seed: int, lr: float, *, steps: int = 40) -> str:
    """A small regression; the validation is on fixed data."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    config = {"seed": seed, "lr": lr}
    run = ammeter.watch(model, optimizer, dir=folder, name=name, config=config, tags={"recipe": name[:4]})
    fixed = torch.linspace(-1, 1, 60).reshape(10, 6)
    for step in range(steps):
        optimizer.zero_grad()
        inputs = torch.randn(8, 6)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        if step % 10 == 9:
            with torch.no_grad():
                run.log(val_loss=float((model(fixed) - fixed.sum(1, keepdim=True)).square().mean()))
    run.close()
    return run.id


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(4):
        train(folder, "fast", seed, 0.05)
        train(folder, "slow", seed, 0.001)
    return folder


def compare(capsys: Output, *words: str | Path) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["compare", *map(str, words), "--json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, document


def test_names_select_all_seeds_and_the_better_group_is_named(folder: Path, capsys: Output) -> None:
    code, document = compare(capsys, "fast", "--against", "slow", "--dir", folder)
    assert (0, "better", "val_loss", 39) == (code, document["decision"], document["metric"], document["last_step"])
    assert [4, 4] == [document[name]["independent"] for name in "ab"]
    assert document["low"] < document["difference"] < document["high"] < 0
    assert ["lr is 0.05 against 0.001"] == [text for text in document["differences"] if text.startswith("lr ")]
    code, document = compare(capsys, "slow", "--against", "fast", "--dir", folder)
    assert (1, "worse") == (code, document["decision"])


def test_tags_and_folders_select_as_names_do(folder: Path, capsys: Output) -> None:
    _, by_name = compare(capsys, "fast", "--against", "slow", "--dir", folder)
    paths = [str(folder / run["id"]) for run in by_name["a"]["runs"]]
    _, by_tag = compare(capsys, *paths, "--against", "recipe=slow", "--dir", folder)
    assert by_name == by_tag


def test_one_run_each_decides_nothing_and_text_says_so(folder: Path, capsys: Output) -> None:
    _, document = compare(capsys, "fast", "--against", "slow", "--dir", folder)
    one, other = (document[name]["runs"][0]["id"] for name in "ab")
    capsys.readouterr()
    assert 2 == main(["compare", one, "--against", other, "--dir", str(folder)])
    lines = capsys.readouterr().out.splitlines()
    assert "decision: too few runs" == lines[0]
    assert "  A has 1 independent run; 3 are needed" in lines
    assert "values: val_loss at step 39" in lines


def test_a_name_that_no_run_has_is_a_wrong_call(folder: Path, capsys: Output) -> None:
    assert 2 == main(["compare", "fast", "--against", "nobody", "--dir", str(folder)])
    assert "there is no run 'nobody' in" in capsys.readouterr().err
