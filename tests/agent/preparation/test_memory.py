"""A checkpoint that was loaded before ammeter was imported is found in memory."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter.preparation.contents import Contents
from ammeter.preparation.memory import checkpoint_in_memory
from ammeter.preparation.observer import observer
from ammeter.report.diagnosis import diagnose
from ammeter.tensors.live_objects import live_objects
from tests import forked
from tests.agent.preparation.resumed_run import ALL, resumed, saved
from tests.ranks import without_settings

PROGRAM = """
import sys, torch
torch.manual_seed(2)
network = torch.nn.Sequential(torch.nn.Embedding(20, 8), torch.nn.Flatten(), torch.nn.Linear(32, 4))
trainer = torch.optim.NAdam(network.parameters(), lr=0.003)

def restore(*parts):
    snapshot = torch.load("snapshot.bin")
    for part, name in parts:
        part.load_state_dict(snapshot[name])
    import ammeter
    return ammeter.watch(network, trainer)

words = sys.argv[1:]
parts = [(network, "net")] * ("net" in words) + [(trainer, "opt")] * ("opt" in words)
if words:
    restore(*parts)
for step in range(12):
    trainer.zero_grad()
    torch.nn.functional.cross_entropy(network(torch.randint(20, (6, 4))), torch.randint(4, (6,))).backward()
    trainer.step()
if not words:
    torch.save({"net": network.state_dict(), "opt": trainer.state_dict()}, "snapshot.bin")
"""


def run_program(folder: Path, *words: str) -> None:
    """Runs the program in a process that has not imported ammeter."""
    environment = {**without_settings(), "AMMETER_DIR": str(folder / "runs")}
    command = [sys.executable, str(folder / "program.py"), *words]
    forked.run(command, imports=forked.LAUNCH, env=environment, cwd=folder, check=True, timeout=120)


@pytest.fixture(scope="module")
def first_life(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resumed")
    (folder / "program.py").write_text(PROGRAM)
    run_program(folder)
    return folder


@pytest.mark.parametrize(("words", "expected"), [(["net"], ["resume-mismatch"]), (["net", "opt"], [])])
def test_a_late_import_is_judged_by_the_checkpoint_in_a_variable(
    words: list[str], expected: list[str], first_life: Path
) -> None:
    before = set(first_life.glob("runs/*"))
    run_program(first_life, *words)
    (run,) = set(first_life.glob("runs/*")) - before
    found = [entry.finding for entry in diagnose(run).findings]
    assert expected == [finding.verdict for finding in found]
    assert all("checkpoint in memory" in finding.cause for finding in found)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (ALL, set()),
        (("model", "scaler", "scheduler"), {"resume-mismatch"}),
        (("model", "optimizer", "scheduler"), {"scaler-not-restored"}),
        (("model",), {"resume-mismatch"}),
        ((), set()),
    ],
    ids=["everything", "no optimizer", "no scaler", "only weights", "nothing"],
)
def test_a_resume_without_notes_is_judged_by_what_it_loaded(
    names: tuple[str, ...], expected: set[str], tmp_path: Path
) -> None:
    observer.stop()
    assert expected == set(resumed(saved(tmp_path / "kept"), tmp_path / "journals", *names).findings())


def trained(seed: int) -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
    """A model with weights of its own: what another test left in memory is no checkpoint of it."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(6, 5)
    optimizer = torch.optim.RMSprop(model.parameters())
    model(torch.randn(3, 6)).square().mean().backward()
    optimizer.step()
    return model, optimizer


def seen_by(variable: Any, model: torch.nn.Module) -> Contents | None:
    """What is found while the caller has this variable."""
    assert variable is not None
    return checkpoint_in_memory(list(model.parameters()), live_objects(torch.Tensor))


def test_a_copy_of_the_weights_with_a_used_optimizer_is_a_checkpoint() -> None:
    model, optimizer = trained(1)
    state = {"model": copy.deepcopy(model.state_dict()), "optimizers": [optimizer.state_dict()]}
    contents = seen_by(state, model)
    assert contents is not None
    assert contents.optimizer
    assert {"float32"} == set(contents.weights)


def test_other_states_are_none() -> None:
    model, optimizer = trained(2)
    weights, used = copy.deepcopy(model.state_dict()), optimizer.state_dict()
    unused = torch.optim.RMSprop(model.parameters()).state_dict()
    assert seen_by({"model": weights}, model) is None
    assert seen_by({"model": weights, "optimizer": unused}, model) is None
    assert seen_by({"model": model.state_dict(), "optimizer": used}, model) is None  # the live weights, no copy
    with torch.no_grad():
        model.weight.add_(1)
    assert seen_by({"model": weights, "optimizer": used}, model) is None


def test_states_among_the_variables_of_a_module_are_no_checkpoint() -> None:
    model, optimizer = trained(4)
    variables: dict[str, Any] = {"__builtins__": {}, "moments": optimizer.state_dict()}
    variables["weights"] = copy.deepcopy(model.state_dict())
    assert seen_by(variables, model) is None
    del variables["__builtins__"]
    assert seen_by(variables, model) is not None


def test_weights_that_are_all_zero_fit_every_checkpoint_and_prove_none() -> None:
    model, optimizer = trained(5)
    with torch.no_grad():
        model.weight.zero_()
    assert seen_by({"model": copy.deepcopy(model.state_dict()), "optimizer": optimizer.state_dict()}, model) is None


def test_no_variable_lives_longer_because_it_was_examined() -> None:
    model, optimizer = trained(3)
    state: Any = {"model": copy.deepcopy(model.state_dict()), "optimizer": optimizer.state_dict()}
    alive = weakref.ref(state["model"]["weight"])
    assert seen_by(state, model) is not None
    del state
    gc.collect()
    assert alive() is None


def test_a_run_holds_no_reference_to_tensors_that_are_like_no_weight(tmp_path: Path) -> None:
    model, optimizer = trained(3)
    data = [torch.zeros(3) for _ in range(1_000)]
    copy = model.weight.detach().clone()
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    assert run._session is not None
    strays = list(run._session.preparation.strays)
    run.close()
    assert any(stray is copy for stray in strays)
    assert not {*map(id, data)} & {*map(id, strays)}


def test_gradients_and_the_state_of_the_optimizer_are_no_copies_of_weights(tmp_path: Path) -> None:
    model, optimizer = trained(3)
    model(torch.randn(2, model.in_features)).sum().backward()
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    assert run._session is not None
    strays = set(map(id, run._session.preparation.strays))
    run.close()
    assert model.weight.grad is not None
    states = [tensor for state in optimizer.state.values() for tensor in state.values()]
    assert states
    assert strays.isdisjoint(map(id, [model.weight.grad, *states]))
