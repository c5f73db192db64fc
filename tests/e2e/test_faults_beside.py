"""Faults that show beside another run only: the report of the two names them; runs that are alike are silent."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ammeter.__main__ import main
from tests.e2e.reference import REGISTRY, train

pytestmark = pytest.mark.long

NAMES = {"validation-drift", "not-comparable", "not-reproducible"}
SLOWER = "slower-than-fp32"
ATTEMPTS = 3
"""Times the slower run and its baseline are trained: other tests can stop one of the two for most of its few steps."""

Output = pytest.CaptureFixture[str]
Bases = Callable[[tuple[str, ...]], Path]
FEW = ("--eval-every", "15")


def against(fault: str) -> tuple[str, ...]:
    """The options of the run that the fault is held against, as the trainer's registry has them."""
    options = REGISTRY[fault].against
    assert options is not None
    return options


def compared(folder: Path, base: Path, capsys: Output) -> dict[str, Any]:
    """The findings of the run in the folder beside the base, by verdict, causes first."""
    capsys.readouterr()
    main(["report", str(folder), "--baseline", str(base), "--json"])
    return {finding["verdict"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    """The folder in which the run of these options lies, called base; it is trained when it is asked for first."""

    @cache
    def trained(options: tuple[str, ...]) -> Path:
        folder = tmp_path_factory.mktemp("base")
        train(folder, "--precision", "bf16", *FEW, "--name", "base", *options)
        return folder

    return trained


@pytest.mark.parametrize("fault", sorted(NAMES))
def test_the_fault_is_named_beside_its_baseline(fault: str, bases: Bases, tmp_path: Path, capsys: Output) -> None:
    base = bases(against(fault))
    train(tmp_path, "--precision", "bf16", *FEW, "--fault", fault)
    found = compared(tmp_path, base, capsys)
    finding = found.pop(fault)
    assert "ticket" == finding["severity"]
    assert "base" == finding["evidence"]["baseline"]
    assert not set(found) - {SLOWER}  # which bfloat16 is on a CPU without units for it
    known = {"validation-drift": (14, 44), "not-comparable": (0, 0)}
    steps = (finding["first_step"], finding["opened_step"])
    assert known.get(fault, (steps[0], max(9, steps[0]))) == steps
    if fault == "not-comparable":
        differences = {
            difference["key"]: (difference["run"], difference["baseline"])
            for difference in finding["evidence"]["differences"]
        }
        assert {
            "batch": (4, 2),
            "samples": ("4 a step", "2 a step"),
            "tokens": ("128 a step", "64 a step"),
        } == differences
        assert all(
            difference["forbids"] == ["speed", "memory", "cost", "validation"]
            for difference in finding["evidence"]["differences"]
        )
    if fault == "not-reproducible":
        assert 5 <= finding["first_step"] <= 30


def test_a_slower_run_is_named_beside_the_baseline_that_trains_at_the_same_time(tmp_path: Path, capsys: Output) -> None:
    for attempt in map(str, range(ATTEMPTS)):
        base, run = tmp_path / attempt / "base", tmp_path / attempt / "run"
        with ThreadPoolExecutor(2) as both:  # at the same time, so that the machine's load is the same for both
            options = ("--precision", "bf16", *FEW)
            trained = both.submit(train, base, *options, "--name", "base", *against(SLOWER))
            both.submit(train, run, *options, "--fault", SLOWER).result()
            trained.result()
        found = compared(run, base, capsys)
        assert not set(found) - {SLOWER}
        if SLOWER in found:
            break
    finding = found[SLOWER]
    assert "ticket" == finding["severity"]
    assert "base" == finding["evidence"]["baseline"]
    assert (20, 59) == (finding["first_step"], finding["opened_step"])


def test_a_healthy_run_and_its_float32_baseline_differ_in_speed_at_most(
    bases: Bases, tmp_path: Path, capsys: Output
) -> None:
    train(tmp_path, "--precision", "fp16", *FEW)
    assert not set(compared(tmp_path, bases(("--precision", "fp32")), capsys)) - {SLOWER}
