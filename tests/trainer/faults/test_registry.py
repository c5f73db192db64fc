"""Every fault of the registry: its description, its first step, and the precisions that it fits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import product
from pathlib import Path

import pytest

import broken
import train
from console import Summary
from faults import REGISTRY
from tests.trainer.conftest import Seen, Trains
from tests.trainer.faults.runs import Check, healthy, symptoms

pytestmark = pytest.mark.long

SURVIVED = [name for name in REGISTRY if name not in ("run-lost", "run-stalled", "unsupported-op")]
PRECISIONS, ARCHS = ("fp16", "bf16", "fp32"), ("gpt", "cnn")


def with_symptoms() -> set[str]:
    """The faults whose symptoms a function of this folder describes."""
    modules = [
        import_module(f"tests.trainer.faults.{path.stem}") for path in Path(__file__).parent.glob("test_[!r]*.py")
    ]
    return {name for module in modules for name in symptoms(vars(module))}


ANOTHER_RESULT = sorted({"clip-before-unscale"} | set(SURVIVED) - with_symptoms())
"""Faults without such a function, and one as an example: the result of the run is another one."""


def ends_elsewhere(run: Summary, seen: Seen) -> None:
    assert run.val_loss != healthy(seen).val_loss


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
@pytest.mark.parametrize("name", ANOTHER_RESULT)
def test_a_fault_changes_the_result_unless_its_symptoms_say_otherwise(name: str, arch: str, check: Check) -> None:
    check(name, arch, ends_elsewhere)


def test_symptoms_belong_to_faults_that_a_run_survives() -> None:
    assert with_symptoms() <= set(SURVIVED)


@pytest.mark.parametrize("name", REGISTRY)
def test_every_fault_says_what_a_person_sees(name: str) -> None:
    story = REGISTRY[name].story
    assert story[0].isupper()
    assert story.endswith(".")
    assert len(story) > 80


@functools.cache
def losses_of_five_steps(arch: str, optimizer: str, precision: str) -> list[float]:
    """Losses of the unbroken trainer."""
    return recorded(train.main, *first_steps(arch, optimizer, precision))


def first_steps(arch: str, optimizer: str, precision: str) -> list[str]:
    return ["--tiny", "--arch", arch, "--steps", "5", "--optimizer", optimizer, "--precision", precision]


def recorded(main: Callable[[list[str]], Summary], *words: str) -> list[float]:
    """Losses that a run reports to a stand-in for Ammeter."""
    with pytest.MonkeyPatch.context() as patch:
        seen = Seen()
        patch.setattr(train, "ammeter", seen)
        main([*words])
    return seen.losses


@pytest.mark.usefixtures("seen")
@pytest.mark.parametrize("arch", ["gpt", "cnn"])
@pytest.mark.parametrize("name", SURVIVED)
def test_a_fault_does_nothing_before_its_step(name: str, arch: str) -> None:
    fault = REGISTRY[name]
    recipe = (arch, fault.optimizers[0], fault.precisions[0])
    assert losses_of_five_steps(*recipe) == recorded(broken.main, *first_steps(*recipe), "--fault", f"{name}@5")


def in_pairs() -> Iterator[tuple[str, str, str]]:
    """Each pair of fault, precision and network, without all products of the three.

    A fault names the precisions that it fits whatever the network; its symptoms are checked on both networks.
    """
    for number, name in enumerate(SURVIVED):
        for at, precision in enumerate(PRECISIONS):
            yield name, precision, ARCHS[(number + at) % 2]


def test_each_pair_of_fault_precision_and_network_is_tried() -> None:
    triples = list(in_pairs())
    assert set(product(SURVIVED, PRECISIONS)) == {(name, precision) for name, precision, _ in triples}
    assert set(product(SURVIVED, ARCHS)) == {(name, arch) for name, _, arch in triples}
    assert set(product(PRECISIONS, ARCHS)) == {(precision, arch) for _, precision, arch in triples}


@pytest.mark.parametrize(("name", "precision", "arch"), list(in_pairs()))
def test_a_fault_runs_with_every_precision_it_names_and_refuses_the_others(
    name: str, precision: str, arch: str, tiny: Trains, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--arch", arch, "--steps", "3", "--fault", f"{name}@1", "--precision", precision]
    if precision in REGISTRY[name].precisions:
        assert 3 == tiny(*arguments).steps
    else:
        with pytest.raises(SystemExit):
            tiny(*arguments)
        fits = " or ".join(REGISTRY[name].precisions)
        assert f"--fault is '{name}', which --precision {precision} cannot have; use {fits}." in capsys.readouterr().err
