"""A run in several lives is compared as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter.__main__ import main
from ammeter.report import baseline
from tests.agent.report.test_likeness import Optimize, Output, adam, mlp


@pytest.fixture
def one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """All trainings of a test are lives of one run."""
    monkeypatch.setenv("AMMETER_RUN_ID", "7d1f2c1e-58a5-4d55-9a35-58c05b8c8a11")


def lives(
    folder: Path,
    *stretches: tuple[int, int],
    optimize: Optimize = adam,
    late: bool = False,
    restores: bool = True,
    offset: float = 0.0,
) -> Path:
    """Each stretch is a life: from the checkpoint at its first step, to before its last. late: restored behind watch().

    The validation loss of a step says in which life it was made.
    """
    saved: dict[int, Any] = {}
    path = folder
    for life, (first, last) in enumerate(stretches):
        torch.manual_seed(first)
        model = mlp()
        optimizer = optimize(model.parameters())

        def restore(first: int = first, model: Any = model, optimizer: Any = optimizer) -> None:
            if first and restores:
                checkpoint = torch.load(folder / f"at-{first}.pt")
                model.load_state_dict(checkpoint["model"])
                optimizer.load_state_dict(checkpoint["optimizer"])

        if not late:
            restore()
        run = ammeter.watch(model, optimizer, dir=folder / "runs", name="resumed")
        if late:
            restore()
        for step in range(first, last):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            if step % 10 == 9:
                run.log(val_loss=1.0 + offset + step + 1000 * life)
                torch.save(
                    {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / f"at-{step + 1}.pt"
                )
        run.close()
        saved[life] = run.id
        path = folder / "runs" / run.id
    return path


SGD: Optimize = lambda parameters: torch.optim.SGD(parameters, lr=0.01)  # noqa: E731


@pytest.mark.usefixtures("one_run")
@pytest.mark.parametrize("late", [False, True], ids=["restored before watch()", "restored after watch()"])
@pytest.mark.parametrize("optimize", [adam, SGD], ids=["Adam", "SGD"])
def test_a_run_that_came_back_counts_on(tmp_path: Path, optimize: Optimize, late: bool) -> None:
    course = baseline.read(lives(tmp_path, (0, 40), (40, 70), optimize=optimize, late=late))
    assert list(range(70)) == course.curve("loss").steps.tolist()
    assert list(range(9, 70, 10)) == course.curve("val_loss").steps.tolist()
    assert [10.0, 20.0, 30.0, 40.0, 1050.0, 1060.0, 1070.0] == course.curve("val_loss").values.tolist()
    assert (69, 2) == (course.last_step, len(course.parts))


@pytest.mark.usefixtures("one_run")
@pytest.mark.parametrize(("optimize", "late"), [(adam, False), (adam, True), (SGD, True)])
def test_of_steps_that_are_repeated_the_later_life_holds(tmp_path: Path, optimize: Optimize, late: bool) -> None:
    course = baseline.read(lives(tmp_path, (0, 40), (20, 60), optimize=optimize, late=late))
    assert list(range(60)) == course.curve("loss").steps.tolist()
    assert [10.0, 20.0, 1030.0, 1040.0, 1050.0, 1060.0] == course.curve("val_loss").values.tolist()


@pytest.mark.usefixtures("one_run")
def test_a_life_that_was_not_restored_begins_again(tmp_path: Path) -> None:
    course = baseline.read(lives(tmp_path, (0, 40), (0, 20)))
    assert (19, [1010.0, 1020.0]) == (course.last_step, course.curve("val_loss").values.tolist())


@pytest.mark.usefixtures("one_run")
def test_a_resumed_run_is_gated_whole(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    run = lives(tmp_path / "run", (0, 40), (40, 70))
    monkeypatch.delenv("AMMETER_RUN_ID")
    (tmp_path / "base").mkdir()
    base = lives(tmp_path / "base", (0, 70))
    capsys.readouterr()
    main(["gate", str(run), str(base), "--slower", "100000", "--json"])
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["validation"]["said"].startswith("1070 against 70 at step 69")
    assert checks["settings"]["within"]
    main(["report", str(run), "--baseline", str(base), "--json"])
    assert 69 == json.loads(capsys.readouterr().out)["baseline"]["validation_step"]
