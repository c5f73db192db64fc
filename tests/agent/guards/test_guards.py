from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter import guards
from ammeter.report import diagnosis
from tests.agent.guarded import Net, Outcome, train

ALL: dict[str, Any] = {
    "scale": lambda: [guards.Scale()],
    "precision": lambda: [guards.Precision()],
    "precision of a module": lambda: [guards.Precision(module="loud")],
    "checkpoint": lambda: [guards.Checkpoint(every_steps=10)],
    "stop": lambda: [guards.Stop()],
    "on incident": lambda: [guards.OnIncident(lambda finding: None)],
    "all together": lambda: [guards.Scale(), guards.Precision(), guards.Stop(), guards.Checkpoint()],
}
STEPS = 40


def bare(**options: Any) -> Outcome:
    return train(None, steps=STEPS, **options)


@pytest.mark.parametrize("which", ALL)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_guard_with_nothing_to_do_changes_no_bit(which: str, clip: float | None, tmp_path: Path) -> None:
    options: dict[str, Any] = {"clip": clip, "scaler": {"init_scale": 16.0, "growth_interval": 6}}
    guarded = train(tmp_path, ALL[which](), steps=STEPS, **options)
    assert bare(**options).state == guarded.state
    assert {"wrote"} >= {action for action, _ in guarded.actions()}


@pytest.mark.parametrize("which", ["stop", "on incident", "all together"])
def test_without_a_scaler_no_bit_changes_either(which: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"with_scaler": False, "dtype": torch.bfloat16}
    assert bare(**options).state == train(tmp_path, ALL[which](), steps=STEPS, **options).state


PROGRAM = """
import sys, ammeter
print('guards' in ammeter.__all__, 'torch' in sys.modules)
import torch
model = torch.nn.Linear(2, 1)
run = ammeter.watch(model, torch.optim.SGD(model.parameters(), lr=1), dir=sys.argv[1])
print([name for name in sys.modules if name.startswith('ammeter.guards')], type(run._session.journal).__name__)
run.close()
print(ammeter.Stopped.__mro__[1], ammeter.guards.Stopped is ammeter.Stopped)
"""


def test_where_no_guard_is_asked_for_nothing_of_them_is_imported(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert ["True False", "[] Journal", "<class 'Exception'> True"] == done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (["stop"], TypeError, r"guards\[0\] is a str; use the guards of ammeter.guards: Scale, Precision"),
        (guards.Stop(), TypeError, r"guards is a Stop; watch\(\) takes a list"),
        ([guards.Stop(), guards.Stop()], ValueError, "guards has two of Stop"),
        (
            [guards.Precision(module="lout")],
            ValueError,
            "module is 'lout', which the model does not have; .*such as 'first'",
        ),
    ],
)
def test_guards_that_cannot_be_meant_are_refused_at_once(given: Any, error: type[Exception], message: str) -> None:
    net = Net()
    with pytest.raises(error, match=message):
        ammeter.watch(net, torch.optim.SGD(net.parameters(), lr=1), guards=given)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: guards.Scale(floor=0.5), "floor is 0.5, ceiling 16777216.0; use 1 <= floor <= ceiling"),
        (lambda: guards.Scale(margin=0.9), "margin is 0.9; use a factor of 1 or more"),
        (lambda: guards.Scale(hold=0), "hold is 0; use a number of steps"),
        (lambda: guards.Precision(to="float8"), "to is 'float8'; use one of bfloat16, float32"),
        (lambda: guards.Precision(patience=0), "patience is 0; use a whole number of 1 or more"),
        (lambda: guards.Checkpoint(every_minutes=-1), "every_minutes is -1; use a number above 0"),
        (
            lambda: guards.Checkpoint(parts={"epoch": 3}),
            r"parts\['epoch'\] is a int; use an object with state_dict\(\)",
        ),
        (
            lambda: guards.Stop(["nonfinite-weight"]),
            "there is no verdict 'nonfinite-weight'; did you mean 'nonfinite-w",
        ),
        (lambda: guards.OnIncident(print, ["x"]), "there is no verdict 'x'; docs/verdicts.md lists them"),
    ],
)
def test_a_number_that_cannot_be_meant_is_refused_with_its_value(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_guard_that_fails_is_off_and_training_goes_on_as_if_it_were_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def fails(*_: Any) -> None:
        calls.append(1)
        raise RuntimeError("no more")

    monkeypatch.setattr(guards.Scale, "after_update", fails)
    guarded = train(tmp_path, [guards.Scale()], steps=STEPS)
    assert bare().state == guarded.state
    assert 1 == len(calls)
    assert "ammeter: its scale-guard probe failed and is switched off (RuntimeError: no more" in caplog.text


def test_run_autocast_is_torch_autocast_where_nothing_is_watched() -> None:
    run = ammeter.Run()
    with run.autocast("cpu", torch.float16):
        assert torch.float16 == torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype
    with run.autocast("cpu", enabled=False):
        assert torch.float32 == torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype
    with run.autocast():
        assert torch.bfloat16 == torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype  # torch's own for the CPU


def test_the_report_tells_what_a_guard_did(tmp_path: Path) -> None:
    def before(step: int, net: Any, optimizer: Any, scaler: Any) -> None:
        if step == 10:
            scaler._scale.fill_(2.0**40)

    outcome = train(tmp_path, [guards.Scale()], before=before)
    reported = [data["said"] for data in diagnosis.diagnose(tmp_path / outcome.run).as_json()["seen"]]
    assert (
        "the scale guard restored, 1.1e+12 (2^40) to 1024 (2^10): the program has set a scale outside of floor and"
        " ceiling, which would skip a step or damage the weights"
    ) in reported


class Halves(torch.nn.Module):
    """Two layers, of which one is compiled by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.compile(torch.nn.Linear(6, 8), backend="eager")
        self.last = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.first(x))
        return found


def compiled(folder: Path | None, whole: bool) -> list[bytes]:
    torch.manual_seed(1)
    net = Halves()
    model: Any = torch.compile(net, backend="eager", fullgraph=True) if whole else net
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    asked = [guards.Scale(), guards.Precision(module="first"), guards.Stop(), guards.Checkpoint(every_steps=4)]
    run = ammeter.watch(model, optimizer, scaler, dir=folder, guards=asked) if folder else ammeter.Run()
    for _ in range(12):
        optimizer.zero_grad()
        with run.autocast("cpu", torch.float16):
            loss = model(torch.randn(4, 6)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    run.close()
    return [parameter.detach().numpy().tobytes() for parameter in net.parameters()]


@pytest.mark.parametrize("whole", [True, False])
def test_a_compiled_model_trains_under_guards_as_without(whole: bool, tmp_path: Path) -> None:
    torch.compiler.reset()
    bare = compiled(None, whole)
    torch.compiler.reset()
    assert bare == compiled(tmp_path, whole)
