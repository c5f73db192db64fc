"""not-as-asked fires where half precision ends in the middle of a run, and in programs that assign their gradients."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from ammeter.recording.session import watching as sessions
from tests.agent.own_functions import Passing
from tests.agent.recording.unobserved.test_same_rows import engine
from tests.agent.training import Model, watching
from tests.agent.verdicts.low_precision.test_not_as_asked import NAME, Context, cpu, cuda, reason_of, trained


@pytest.mark.skipif(torch.cuda.is_available(), reason="with CUDA, autocast for it is not refused")
def test_it_is_found_in_a_program_that_assigns_its_gradients(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    with watching(tmp_path, model, optimizer) as seen:
        for _ in range(8):
            with cuda():
                loss = cross_entropy(model(torch.randn(8, 12)).float(), torch.randint(3, (8,)))
            found = torch.autograd.grad(loss, list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), found, strict=True):
                parameter.grad = gradient
            optimizer.step()
    assert "refused" == reason_of(seen)


def test_float32_after_a_phase_in_float16_is_found(tmp_path: Path) -> None:
    steps = iter(range(200))
    seen = trained(tmp_path, lambda: cpu() if next(steps) < 3 else nullcontext(), scaled=True, steps=150)
    assert "outside" == reason_of(seen)


def half_and_then(folder: Path, *, entered: bool, frozen: bool = False) -> Any:
    """A program in bfloat16 without a scaler, which runs in float32 from step 60 on; autocast may be left too early."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    with watching(folder, model, optimizer, budget=1.0) as seen:
        for step in range(130):
            x, y = torch.randn(8, 12), torch.randint(3, (8,))
            optimizer.zero_grad()
            if frozen and step == 60:
                next(model.parameters()).requires_grad_(False)
            with cpu(torch.bfloat16) if step < 60 else nullcontext():
                loss = cross_entropy(model(x), y)
            if entered:
                with cpu(torch.bfloat16):
                    x.mean()
            torch.autograd.backward(loss)
            optimizer.step()
    return seen


def test_a_forward_pass_that_leaves_autocast_in_a_later_phase_is_found_without_a_scaler(tmp_path: Path) -> None:
    seen = half_and_then(tmp_path, entered=True)
    assert "outside" == reason_of(seen)
    assert 60 <= seen.findings()[NAME].opened_step <= 100


@pytest.mark.parametrize(("entered", "frozen"), [(False, False), (True, True)])
def test_a_last_phase_in_float32_on_purpose_is_silent(entered: bool, frozen: bool, tmp_path: Path) -> None:
    assert NAME not in half_and_then(tmp_path, entered=entered, frozen=frozen).findings()


def test_a_phase_for_which_the_program_disables_autocast_is_silent(tmp_path: Path) -> None:
    """Its validation enters autocast without no_grad(), as before."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    with watching(tmp_path, model, optimizer) as seen:
        for step in range(130):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=step < 60):
                loss = cross_entropy(model(torch.randn(8, 12)), torch.randint(3, (8,)))
            torch.autograd.backward(loss)
            optimizer.step()
            with cpu(torch.bfloat16):
                model(torch.randn(8, 12))
    assert NAME not in seen.findings()


@pytest.mark.skipif(torch.cuda.is_available(), reason="with CUDA, autocast for it is not refused")
@pytest.mark.parametrize(
    ("context", "scaled", "reason"),
    [
        (cuda, True, "refused"),
        (cuda, False, "refused"),
        (lambda: cpu(enabled=False), True, "disabled"),
        (lambda: cpu(torch.float32), True, "float32"),
    ],
)
@pytest.mark.parametrize("follows", [True, False], ids=["followed", "not followed"])
def test_another_precision_from_some_step_on_is_found_with_its_own_reason(
    context: Context, scaled: bool, reason: str, follows: bool, tmp_path: Path
) -> None:
    steps = iter(range(200))

    def at_first_in_float16() -> AbstractContextManager[Any]:
        step = next(steps)
        if step == 20 and not follows:
            for session in sessions():
                session._follow(False)
                session.governor.attention.follows = False
                session.fast_path.disable()  # how often it is used depends on the load
        return cpu() if step < 40 else context()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen = trained(tmp_path, at_first_in_float16, scaled=scaled, steps=100)
    finding = seen.findings()[NAME]
    assert (reason, "float32") == (finding.evidence["reason"], finding.evidence["ran"])
    assert 40 <= finding.opened_step <= 66


class PartlyHidden(Model):
    """Has a Function of its own in its middle, whose dtypes the graph of the loss does not show."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = Passing.apply(self.norm(self.first(x)), 1.0)  # type: ignore[no-untyped-call]
        return self.last(hidden)  # type: ignore[no-any-return]


class MostlyHidden(Model):
    """Has more such Functions than products."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.norm(self.first(x))
        for _ in range(9):
            hidden = Passing.apply(hidden, 1.0)  # type: ignore[no-untyped-call]
        return self.last(hidden)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("kind", "first", "reason"),
    [(PartlyHidden, 40, "disabled"), (PartlyHidden, 0, "disabled"), (MostlyHidden, 0, None)],
)
def test_a_graph_that_hides_dtypes_tells_what_most_products_show(
    kind: Any, first: int, reason: str | None, tmp_path: Path
) -> None:
    steps = iter(range(100))
    seen = trained(tmp_path, lambda: cpu(enabled=next(steps) < first), scaled=True, steps=100, kind=kind)
    assert reason == reason_of(seen)


@pytest.fixture
def cuda_autocast() -> Iterator[None]:
    """Autocast that no context has switched on."""
    torch.set_autocast_enabled("cuda", True)
    yield
    torch.set_autocast_enabled("cuda", False)


@pytest.mark.usefixtures("cuda_autocast")
@pytest.mark.parametrize("is_observed", [True, False])
def test_autocast_of_another_device_is_seen_in_the_forward_pass(is_observed: bool, tmp_path: Path) -> None:
    """Also if neither the context nor backward(), here in a closure, was observed."""
    model = Model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    x, y = torch.randn(8, 12), torch.randint(3, (8,))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        torch.autograd.backward(loss) if is_observed else engine(loss)
        return loss

    with watching(tmp_path, model, optimizer) as seen:
        for _ in range(12):
            optimizer.step(closure)  # type: ignore[no-untyped-call]
    assert "wrong-device" == reason_of(seen)


def test_forward_passes_in_float32_beside_the_training_are_no_loss(tmp_path: Path) -> None:
    """Such as those that collect the data of reinforcement learning."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with watching(tmp_path, model, optimizer) as seen:
        for _ in range(30):
            for _ in range(12):
                model(torch.randn(8, 12))
            with cpu(torch.bfloat16):
                loss = cross_entropy(model(torch.randn(8, 12)).float(), torch.randint(3, (8,)))
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    assert NAME not in seen.findings()
