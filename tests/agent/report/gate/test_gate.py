"""`ammeter gate` and `ammeter report --baseline` hold a run against another one, both watched by the real agent."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter.__main__ import main

Output = pytest.CaptureFixture[str]


def train(
    folder: Path,
    name: str,
    *,
    spoil: float = 0.0,
    half: bool = False,
    tags: dict[str, str] | None = None,
    **config: Any,
) -> Path:
    """Forty steps of a small network, validated at every tenth. spoil: what validation is worse by."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    settings = {"lr": 0.01, "seed": 0, **config}
    run = ammeter.watch(model, optimizer, dir=folder, name=name, config=settings, tags=tags or {})
    for step in range(40):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = model(torch.randn(8, 6)).square().mean()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        if step % 10 == 9:
            run.log(val_loss=1.0 + spoil)
    run.close()
    return folder / run.id


def gate(capsys: Output, *words: str | Path) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["gate", *map(str, words), "--json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, {check["name"]: check for check in document["checks"]} | {"within": document["within"]}


def report(capsys: Output, *words: str | Path) -> dict[str, Any]:
    capsys.readouterr()
    main(["report", *map(str, words), "--json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


NO_SPEED = ("--slower", "100000")
"""Two trainings of a millisecond a step on a machine that does other things say nothing of their speed."""


def test_a_twin_is_within_all_limits_and_equal_to_the_bit(tmp_path: Path, capsys: Output) -> None:
    train(tmp_path, "base")
    code, checks = gate(capsys, train(tmp_path, "twin"), "base", "--reproducible", *NO_SPEED)
    assert (0, True) == (code, checks["within"])
    assert "bit-identical over 40 steps" == checks["same losses"]["said"]
    assert "1 against 1 at step 39, +0.00 %; at most +1 %" == checks["validation"]["said"]
    assert checks["memory"]["within"] is None


def test_validation_beyond_the_limit_is_outside_and_a_wider_limit_lets_it_through(
    tmp_path: Path, capsys: Output
) -> None:
    base, worse = train(tmp_path, "base"), train(tmp_path, "worse", spoil=0.05)
    code, checks = gate(capsys, worse, base, *NO_SPEED)
    assert (3, False, True) == (code, checks["validation"]["within"], checks["settings"]["within"])
    assert 0 == gate(capsys, worse, base, "--drift", "6", *NO_SPEED)[0]
    assert 3 == gate(capsys, train(tmp_path, "broken", spoil=math.nan), base, "--drift", "6", *NO_SPEED)[0]


def test_other_settings_are_outside_unless_they_may_differ(tmp_path: Path, capsys: Output) -> None:
    train(tmp_path, "base")
    other = train(tmp_path, "other", depth=3)
    code, checks = gate(capsys, other, "base", *NO_SPEED)
    assert (3, "differ in depth: depth is 3 against not set") == (code, checks["settings"]["said"])
    assert 0 == gate(capsys, other, "base", "--ignore", "depth", *NO_SPEED)[0]


def test_a_slow_run_is_outside(tmp_path: Path, capsys: Output) -> None:
    train(tmp_path, "base")
    code, checks = gate(capsys, train(tmp_path, "twin"), "base", "--slower", "-99.9")
    assert (3, False) == (code, checks["speed"]["within"])
    assert "at most -99.9 %" in checks["speed"]["said"]


def test_a_limit_that_was_given_and_cannot_be_measured_is_outside(tmp_path: Path, capsys: Output) -> None:
    train(tmp_path, "base")
    twin = train(tmp_path, "twin")
    assert 3 == gate(capsys, twin, "base", "--memory", "5", *NO_SPEED)[0]
    main(["gate", str(twin), "base", "--memory", "5", *NO_SPEED])
    assert "OUTSIDE       memory       no device memory was read in both" in capsys.readouterr().out


def test_a_run_that_is_broken_itself_is_outside(tmp_path: Path, capsys: Output) -> None:
    train(tmp_path, "base")
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ammeter.watch(model, optimizer, dir=tmp_path, name="nan", config={"lr": 0.01, "seed": 0})
    for _ in range(12):
        optimizer.zero_grad()
        (model(torch.ones(1, 2)).sum() * math.nan).backward()
        optimizer.step()
    run.close()
    code, checks = gate(capsys, tmp_path / run.id, "base")
    assert (3, False) == (code, checks["findings"]["within"])
    assert "nonfinite-loss" in checks["findings"]["said"]


def test_a_baseline_that_is_not_there_is_a_wrong_call(tmp_path: Path, capsys: Output) -> None:
    run = train(tmp_path, "twin")
    assert 2 == main(["gate", str(run), "monday"])
    assert "there is no baseline 'monday' in" in capsys.readouterr().err
    assert 2 == main(["gate", str(tmp_path / "nowhere"), "monday"])
    with pytest.raises(SystemExit) as left:
        main(["gate", str(run), "monday", "--drift", "much"])
    assert 2 == left.value.code


def test_a_run_is_named_by_its_name_too(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMMETER_DIR", str(tmp_path))
    train(tmp_path, "base")
    train(tmp_path, "twin")
    assert 0 == main(["gate", "twin", "base", "--slower", "1000000"])
    assert capsys.readouterr().out.startswith("twin against base")


def test_the_report_compares_with_the_run_that_is_given_or_named_by_a_tag(tmp_path: Path, capsys: Output) -> None:
    base = train(tmp_path, "base")
    worse = train(tmp_path, "worse", spoil=0.05)
    named = train(tmp_path, "named", spoil=0.05, tags={"baseline": "base"})
    for words in ((worse, "--baseline", base), (worse, "--baseline", "base"), (named,)):
        document = report(capsys, *words)
        assert ["validation-drift"] == [finding["verdict"] for finding in document["findings"]]
        assert ("base", pytest.approx(0.05)) == (document["baseline"]["name"], document["baseline"]["validation_delta"])
        assert "validation-drift" in document["summary"]["checked"]
    alone = report(capsys, worse)
    assert ([], None) == (alone["findings"], alone["baseline"])
    assert "validation-drift" not in alone["summary"]["checked"]
    main(["report", str(named)])
    assert "validation 5.0 % worse at step 39" in capsys.readouterr().out


def test_of_several_runs_of_a_name_the_newest_that_began_before_is_the_baseline(tmp_path: Path, capsys: Output) -> None:
    train(tmp_path, "base", spoil=9.0)
    train(tmp_path, "base")
    run = train(tmp_path, "run", spoil=0.05, tags={"baseline": "base"})
    train(tmp_path, "base", spoil=0.05)
    assert pytest.approx(0.05) == report(capsys, run)["baseline"]["validation_delta"]
    (stream,) = (folder for folder in run.iterdir() if folder.is_dir())
    assert pytest.approx(0.05) == report(capsys, stream)["baseline"]["validation_delta"]
    assert (
        pytest.approx(0.05)
        == report(capsys, tmp_path, "--all", "--baseline", "base")["items"][2]["baseline"]["validation_delta"]
    )


def test_of_all_runs_the_baseline_itself_is_not_compared(tmp_path: Path, capsys: Output) -> None:
    train(tmp_path, "base")
    train(tmp_path, "run")
    both = report(capsys, tmp_path, "--all", "--baseline", "base")["items"]
    assert [None, "base"] == [document["baseline"] and document["baseline"]["name"] for document in both]


def test_a_run_that_is_named_as_its_own_baseline_is_not_compared(tmp_path: Path, capsys: Output) -> None:
    run = train(tmp_path, "base")
    assert 0 == main(["report", str(run), "--baseline", "base"])
    assert "'base' is this run itself; name another run to compare with" in capsys.readouterr().err


def test_an_agreed_delta_stands_in_a_tag(tmp_path: Path, capsys: Output) -> None:
    train(tmp_path, "base")
    agreed = {"baseline": "base", "validation_delta": "0.1"}
    assert [] == report(capsys, train(tmp_path, "worse", spoil=0.05, tags=agreed))["findings"]


def test_a_baseline_that_a_tag_names_and_nobody_has_is_said(tmp_path: Path, capsys: Output) -> None:
    run = train(tmp_path, "run", tags={"baseline": "monday"})
    assert 0 == main(["report", str(run)])
    assert "The run's baseline 'monday' was not found in" in capsys.readouterr().out
    assert 2 == main(["report", str(run), "--baseline", "tuesday"])


def test_a_real_run_in_half_precision_is_known_as_one(tmp_path: Path, capsys: Output) -> None:
    train(tmp_path, "base")
    document = report(capsys, train(tmp_path, "half", half=True), "--baseline", "base")
    assert "bfloat16" == document["run"]["precision"]
    assert document["baseline"]["speedup"] > 0
    assert "not-reproducible" not in [finding["verdict"] for finding in document["findings"]]
