"""A metric of which higher is better is declared, stored and compared in the right direction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter.__main__ import main

Output = pytest.CaptureFixture[str]
HIGHER = {"val_accuracy": "higher"}


def train(folder: Path, name: str, accuracy: float, perplexity: float = 3.0, **said: Any) -> Path:
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = ammeter.watch(model, optimizer, dir=folder, name=name, **said)
    for step in range(40):
        optimizer.zero_grad()
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
        if step % 10 == 9:
            run.log(val_accuracy=accuracy, perplexity=perplexity)
    run.close()
    return folder / run.id


def gate(capsys: Output, *words: object) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["gate", *map(str, words), "--slower", "100000", "--json"])
    return code, {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}


@pytest.mark.parametrize(
    "said", [{"better": HIGHER}, {"tags": {"better.val_accuracy": "higher"}}], ids=["better", "tags"]
)
def test_less_of_what_should_be_higher_is_worse(tmp_path: Path, capsys: Output, said: dict[str, Any]) -> None:
    base = train(tmp_path, "base", 0.8, **said)
    worse, better = train(tmp_path, "worse", 0.6, **said), train(tmp_path, "better", 0.9, **said)
    code, checks = gate(capsys, worse, base)
    assert (3, False) == (code, checks["val_accuracy"]["within"])
    expected = "0.6 against 0.8 at step 39, +25.00 % worse; at most +1 %, higher is better"
    assert expected == checks["val_accuracy"]["said"]
    assert 0 == gate(capsys, better, base, "--drift", "0")[0]
    main(["report", str(worse), "--baseline", str(base), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert ["validation-drift"] == [data["verdict"] for data in document["findings"]]
    assert 'val_accuracy (higher is better) is worse than that of the run "base"' in document["findings"][0]["cause"]
    assert pytest.approx(0.25) == document["baseline"]["validation_delta"]
    main(["report", str(better), "--baseline", str(base)])
    assert "val_accuracy 12 % better at step 39" in capsys.readouterr().out


def test_several_metrics_each_go_their_own_way(tmp_path: Path, capsys: Output) -> None:
    directions = {**HIGHER, "perplexity": "lower"}
    base = train(tmp_path, "base", 0.8, 3.0)
    run = train(tmp_path, "run", 0.9, 4.0, better=directions)
    code, checks = gate(capsys, run, base)
    assert (3, True, False) == (code, checks["val_accuracy"]["within"], checks["perplexity"]["within"])
    assert "val_loss" not in checks
    undeclared = gate(capsys, train(tmp_path, "undeclared", 0.1, 9.0), base)[1]
    assert "no step at which both were validated" == undeclared["validation"]["said"]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"better": {"val_accuracy": "up"}}, r"better\['val_accuracy'\] is 'up'; use 'higher' or 'lower'"),
        ({"better": {"val_accuracy": True}}, r"better\['val_accuracy'\] is True"),
        ({"better": {"": "higher"}}, "better names the metric ''"),
        ({"tags": {"better.val_accuracy": "max"}}, r"better\['val_accuracy'\] is 'max'"),
    ],
)
def test_an_unknown_direction_raises_at_watch(tmp_path: Path, said: dict[str, Any], error: str) -> None:
    model = torch.nn.Linear(2, 1)
    with pytest.raises(ValueError, match=error):
        ammeter.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), dir=tmp_path, **said)
    with pytest.raises(TypeError, match="better is a list; watch"):
        ammeter.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), dir=tmp_path, better=["val_accuracy"])  # type: ignore[arg-type]
