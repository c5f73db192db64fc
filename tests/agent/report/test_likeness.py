"""What two real runs have not in common is said in words, and nothing is compared that it forbids."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter.__main__ import main
from ammeter.report import baseline
from ammeter.verdicts.framework.run_comparison import RunComparison
from ammeter.verdicts.framework.run_likeness import QUESTIONS

Output = pytest.CaptureFixture[str]
Optimize = Callable[[Any], torch.optim.Optimizer]


def mlp(width: int = 16, name: str = "") -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(6, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))
    return torch.nn.ModuleDict({name: model}) if name else model


def adam(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, **{"lr": 0.01, **options})


def train(
    folder: Path,
    name: str,
    *,
    model: torch.nn.Module | None = None,
    optimize: Optimize = adam,
    batch: int = 8,
    micro: int = 1,
    half: bool = False,
    steps: int = 40,
    **said: Any,
) -> Path:
    torch.manual_seed(0)
    model = mlp() if model is None else model
    optimizer = optimize(model.parameters())
    dtype = next(model.parameters()).dtype
    run = ammeter.watch(model, optimizer, dir=folder, name=name, **said)
    inner = next(iter(model.values())) if isinstance(model, torch.nn.ModuleDict) else model
    for step in range(steps):
        optimizer.zero_grad()
        for _ in range(micro):
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = inner(torch.randn(batch // micro, 6).to(dtype)).float().square().mean()
            loss.backward()
        optimizer.step()
        if step % 10 == 9:
            run.log(val_loss=1.0)
    run.close()
    return folder / run.id


def forbidden(pair: RunComparison) -> set[str]:
    return {question for question in QUESTIONS if pair.exclusion(question)}


def said(pair: RunComparison) -> list[str]:
    return [difference.text for difference in pair.differences]


def test_two_models_are_named_with_their_parameters_and_nothing_is_compared(tmp_path: Path, capsys: Output) -> None:
    base = train(tmp_path, "base")
    run = train(tmp_path, "run", model=mlp(1024))
    pair = baseline.pair(run, base)
    assert "model is 8,193 parameters in 4 tensors against 129 parameters in 4 tensors" in said(pair)
    assert set(QUESTIONS) == forbidden(pair)
    assert (None, None, [], None) == (pair.speed, pair.memory, pair.validations, pair.worst)
    capsys.readouterr()
    assert 3 == main(["gate", str(run), "base", "--slower", "5", "--drift", "1", "--json"])
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert "differ in model" in checks["settings"]["said"]
    for name in ("speed", "validation"):
        assert (None, True) == (checks[name]["within"], checks[name]["asked"])
        assert checks[name]["said"].startswith("not comparable: model is 8,193 parameters in 4 tensors against 129")


@pytest.mark.parametrize(
    ("other", "key"),
    [
        (torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1, bias=False)), "model"),
        (
            torch.nn.Sequential(
                torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Identity(), torch.nn.Tanh(), torch.nn.Linear(16, 1)
            ),
            "model.names",
        ),
    ],
    ids=["other shapes", "other names"],
)
def test_other_shapes_and_other_names_are_another_model(tmp_path: Path, other: torch.nn.Module, key: str) -> None:
    pair = baseline.pair(train(tmp_path, "run", model=other), train(tmp_path, "base"))
    assert key in [difference.key for difference in pair.differences]
    assert set(QUESTIONS) == forbidden(pair)


def test_a_wrapper_around_the_model_is_none(tmp_path: Path) -> None:
    pair = baseline.pair(train(tmp_path, "run", model=mlp(name="inner")), train(tmp_path, "base"))
    assert [] == pair.differences


def test_frozen_layers_are_a_difference(tmp_path: Path) -> None:
    model = mlp()
    model[0].requires_grad_(False)  # type: ignore[index]
    pair = baseline.pair(train(tmp_path, "run", model=model), train(tmp_path, "base"))
    assert "trainable_parameters is 17 against 129" in said(pair)


@pytest.mark.parametrize(
    ("optimize", "expected", "forbids"),
    [
        (lambda parameters: torch.optim.SGD(parameters, lr=0.01), "optimizer is SGD against Adam", set(QUESTIONS)),
        (lambda parameters: adam(parameters, lr=0.02), "optimizer.lr is 0.02 against 0.01", {"validation"}),
        (
            lambda parameters: adam(parameters, betas=(0.9, 0.95)),
            "optimizer.betas is (0.9, 0.95) against (0.9, 0.999)",
            {"validation"},
        ),
        (
            lambda parameters: adam(parameters, weight_decay=0.1),
            "optimizer.weight_decay is 0.1 against 0.0",
            {"validation"},
        ),
        (lambda parameters: adam(parameters, amsgrad=True), "optimizer.amsgrad is True against False", set(QUESTIONS)),
        (
            lambda parameters: adam([{"params": [one], "lr": 0.1 * at} for at, one in enumerate(parameters, 1)]),
            "optimizer.lr is 0.1, 0.2, 0.30000000000000004, 0.4 against 0.01",
            set(QUESTIONS),
        ),
    ],
)
def test_another_optimizer_or_setting_of_it_is_named_and_forbids_what_it_changes(
    tmp_path: Path, optimize: Optimize, expected: str, forbids: set[str]
) -> None:
    pair = baseline.pair(train(tmp_path, "run", optimize=optimize), train(tmp_path, "base"))
    assert expected in said(pair)
    assert forbids == forbidden(pair)


def test_what_a_scheduler_changes_is_taken_at_the_start(tmp_path: Path) -> None:
    def moved(parameters: Any) -> torch.optim.Optimizer:
        optimizer = adam(parameters)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        optimizer.step()
        schedule.step()
        return optimizer

    pair = baseline.pair(train(tmp_path, "run", optimize=moved), train(tmp_path, "base"))
    assert [] == pair.differences


def test_a_measured_batch_is_a_setting_and_so_is_accumulation(tmp_path: Path) -> None:
    base = train(tmp_path, "base", batch=8)
    other = baseline.pair(train(tmp_path, "run", batch=32), base)
    assert ["samples is 32 a step against 8 a step"] == said(other)
    assert set(QUESTIONS) == forbidden(other)
    accumulated = baseline.pair(train(tmp_path, "run", micro=4), base)
    assert ["micro_batches is 4 a step against 1 a step"] == said(accumulated)
    assert {"speed", "memory", "cost"} == forbidden(accumulated)
    assert [] == baseline.pair(base, base, frozenset()).differences
    ignored = baseline.pair(train(tmp_path, "run", batch=32), base, frozenset(("batch_size",)))
    assert (set(), "sample") == (forbidden(ignored), ignored.speed and ignored.speed.per)


@pytest.mark.parametrize("pure", [False, True], ids=["autocast", "half weights"])
def test_the_precision_may_differ(tmp_path: Path, pure: bool) -> None:
    base = train(tmp_path, "base", config={"precision": "fp32", "amp": False})
    model = mlp().to(torch.bfloat16) if pure else mlp()
    config = {"precision": "bf16", "amp": True}
    pair = baseline.pair(train(tmp_path, "run", model=model, half=not pure, config=config), base)
    assert [] == pair.differences
    assert ("bfloat16", "float32") == (pair.run.precision, pair.baseline.precision)
    assert not pair.same_precision
    assert pair.speed is not None


def test_threads_and_versions_forbid_what_they_decide_and_a_commit_is_only_named(tmp_path: Path) -> None:
    from dataclasses import replace

    base = baseline.read(train(tmp_path, "base"))

    def beside(**facts: str) -> RunComparison:
        known = {"driver": "570.86.15", "git_commit": "a" * 40, "cuda": "12.8", **base.environment}
        changed = replace(base, environment={**known, **facts})
        return RunComparison(changed, replace(base, environment=known))

    expected: dict[str, set[str]] = {
        "threads": {"speed", "cost"},
        "torch": {"speed", "memory", "cost"},
        "cuda": {"speed", "memory", "cost"},
        "device": {"speed", "memory", "cost"},
        "driver": set(),
        "git_commit": set(),
    }
    for name, forbids in expected.items():
        pair = beside(**{name: "another"})
        assert [name] == [difference.key for difference in pair.differences]
        assert forbids == forbidden(pair)


def test_a_named_difference_is_within_and_said(tmp_path: Path, capsys: Output) -> None:
    train(tmp_path, "base", tags={"dataset": "c4"})
    other = train(tmp_path, "run", tags={"dataset": "pile", "baseline_ignore": "dataset"})
    capsys.readouterr()
    assert 0 == main(["gate", str(other), "base", "--slower", "100000", "--json"])
    again = train(tmp_path, "run", tags={"dataset": "pile"})
    assert 3 == main(["gate", str(again), "base", "--slower", "100000"])
    assert "dataset is pile against c4" in capsys.readouterr().out
