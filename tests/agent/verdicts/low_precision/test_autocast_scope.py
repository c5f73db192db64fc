"""autocast-scope fires where backward() or the optimizer runs inside autocast, and names the line of the context.

If later forward passes in the same context use copies of weights from before a step, the finding says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from ammeter.verdicts.causality import explains
from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream, mistaken
from tests.agent.stream_judgement import findings
from tests.agent.streams import broken
from tests.agent.training import Model, line_of, watching

NAME = "autocast-scope"


@broken
def autocast_scope() -> Stream:
    return mistaken("autocast_scope", call="backward()", line="loop/train.py:124", device="cpu", dtype="bfloat16")


def half(**options: Any) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, **options)


def loss_of(model: Model) -> torch.Tensor:
    return cross_entropy(model(torch.randn(8, 12)).float(), torch.randint(3, (8,)))


def all_inside(model: Model, optimizer: torch.optim.Optimizer) -> None:
    with half():
        loss = loss_of(model)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
    optimizer.step()


def nested(model: Model, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    with half():
        loss = loss_of(model)
        with half(cache_enabled=False):
            torch.autograd.backward(loss)
    optimizer.step()


@half()  # type: ignore[untyped-decorator]
def decorated(model: Model, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(loss_of(model))
    optimizer.step()


def only_the_step(model: Model, optimizer: torch.optim.Optimizer) -> None:
    with half():
        loss = loss_of(model)
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    with half():
        optimizer.step()


def healthy(model: Model, optimizer: torch.optim.Optimizer) -> None:
    with half():
        loss = loss_of(model)
        with half(enabled=False):
            optimizer.zero_grad()
            torch.autograd.backward(loss)
    optimizer.step()


def with_a_penalty(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """A gradient inside the loss is a part of the forward pass."""
    with half():
        x = torch.randn(8, 12, requires_grad=True)
        loss = cross_entropy(model(x).float(), torch.randint(3, (8,)))
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        loss = loss + gradient.square().sum()
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()


def accumulated(model: Model, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    with half():
        for _ in range(4):
            torch.autograd.backward(loss_of(model))
    optimizer.step()


class Recomputed(torch.autograd.Function):
    """Runs the model again in its backward pass, as checkpoints of several libraries do."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, model: Model) -> torch.Tensor:
        ctx.model, ctx.x = model, x.detach()
        with half():
            output: torch.Tensor = model(x)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x = ctx.x.requires_grad_()
        with torch.enable_grad(), half():
            torch.autograd.backward(ctx.model(x), gradients)
        return x.grad, None


def with_a_second_forward_pass(model: Model, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    output: Any = Recomputed.apply(torch.randn(8, 12, requires_grad=True), model)  # type: ignore[no-untyped-call]
    torch.autograd.backward(output.float().square().mean())
    optimizer.step()


def by_a_library() -> Step:
    """The step of a trainer that is installed beside torch."""
    names: dict[str, Any] = {"half": half, "loss_of": loss_of, "torch": torch}
    exec(compile(inspect.getsource(all_inside), "/opt/lib/site-packages/trainer/loop.py", "exec"), names)
    step: Step = names["all_inside"]
    return step


def one_step(model: Model, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()


def three_steps(model: Model, optimizer: torch.optim.Optimizer) -> None:
    with half():
        for _ in range(3):
            one_step(model, optimizer, loss_of(model))


def three_nested_steps(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """A disabled context keeps the copies of the outer one."""
    with half():
        for _ in range(3):
            loss = loss_of(model)
            with half(enabled=False):
                one_step(model, optimizer, loss)


def three_steps_after_scoring(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """The copies are made without gradients."""
    with half():
        with torch.no_grad():
            loss_of(model)
        for _ in range(3):
            one_step(model, optimizer, loss_of(model))


def three_steps_without_copies(model: Model, optimizer: torch.optim.Optimizer) -> None:
    with half(cache_enabled=False):
        for _ in range(3):
            one_step(model, optimizer, loss_of(model))


def three_steps_with_new_copies(model: Model, optimizer: torch.optim.Optimizer) -> None:
    with half():
        for _ in range(3):
            one_step(model, optimizer, loss_of(model))
            torch.clear_autocast_cache()


def three_contexts(model: Model, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        with half():
            one_step(model, optimizer, loss_of(model))


Step = Callable[[Model, torch.optim.Optimizer], None]


def sgd(model: Model, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.01, **options})


def trained(folder: Path, step: Step, steps: int = 12, make: Callable[[Model], torch.optim.Optimizer] = sgd) -> Any:
    torch.manual_seed(0)
    model = Model()
    optimizer = make(model)
    with watching(folder, model, optimizer) as seen:
        for _ in range(steps):
            step(model, optimizer)
    return seen


@pytest.mark.parametrize(
    ("step", "call", "context"),
    [
        (all_inside, "backward()", "with half():"),
        (nested, "backward()", "with half(cache_enabled=False):"),
        (decorated, "backward()", ""),
        (only_the_step, "SGD.step()", ""),
    ],
)
def test_a_call_inside_autocast_is_found(step: Step, call: str, context: str, tmp_path: Path) -> None:
    seen = trained(tmp_path, step)
    finding = seen.findings()[NAME]
    assert call == finding.evidence["call"]
    assert 0 == finding.first_step
    assert {NAME} == set(seen.findings())
    if context:
        assert str(finding.caller).endswith(line_of(step, context))


@pytest.mark.parametrize("step", [healthy, with_a_penalty, with_a_second_forward_pass, by_a_library()])
def test_calls_outside_and_gradients_inside_the_loss_are_silent(step: Step, tmp_path: Path) -> None:
    assert NAME not in trained(tmp_path, step).findings()


def test_a_context_that_is_never_left_is_found_at_the_line_of_the_call(tmp_path: Path) -> None:
    @contextmanager
    def forever() -> Iterator[None]:
        with half():
            yield

    with forever():
        seen = trained(tmp_path, decorated.__wrapped__, steps=20)
    finding = seen.findings()[NAME]
    assert finding.evidence["line"] == finding.caller
    assert "entered earlier" in finding.cause


def test_a_late_change_begins_at_its_first_step(tmp_path: Path) -> None:
    steps = iter(range(30))
    seen = trained(tmp_path, lambda *run: (all_inside if next(steps) >= 10 else healthy)(*run), steps=30)
    assert 10 == seen.findings()[NAME].first_step


@pytest.mark.parametrize("step", [all_inside, accumulated])
@pytest.mark.parametrize("last", [10, 11])
def test_one_step_or_two_are_silent(step: Step, last: int, tmp_path: Path) -> None:
    steps = iter(range(30))
    seen = trained(tmp_path, lambda *run: (step if 10 <= next(steps) <= last else healthy)(*run), steps=30)
    assert NAME not in seen.findings()


@pytest.mark.parametrize("step", [three_steps, three_nested_steps, three_steps_after_scoring])
@pytest.mark.parametrize("kind", ["foreach", "fused", "single"])
def test_copies_from_before_a_step_are_named(step: Step, kind: str, tmp_path: Path) -> None:
    def make(model: Model) -> torch.optim.Optimizer:
        return sgd(model, foreach=kind == "foreach", fused=kind == "fused")

    seen = trained(tmp_path, step, make=make)
    finding = seen.findings()[NAME]
    assert finding.title == "Forward passes use old copies of the weights"
    assert {NAME} == set(seen.findings())
    assert 1 == finding.first_step
    assert finding.evidence["stale_updates"] in (1, 2)
    assert 0 < finding.evidence["stale_numbers"] <= finding.evidence["compared_numbers"]
    assert {"middle.weight", "last.weight"} == set(finding.evidence["tensors"])
    assert str(finding.caller).endswith(line_of(step, "with half():"))
    assert str(finding.evidence["line"]).endswith(line_of(one_step, "optimizer.step()"))


@pytest.mark.parametrize("step", [three_steps_without_copies, three_steps_with_new_copies, three_contexts, accumulated])
def test_new_copies_are_not_called_old(step: Step, tmp_path: Path) -> None:
    finding = trained(tmp_path, step).findings()[NAME]
    assert finding.title == "backward() runs inside autocast"


def test_copies_of_weights_that_no_step_changes_are_not_old(tmp_path: Path) -> None:
    finding = trained(tmp_path, three_steps, make=lambda model: sgd(model, lr=0.0)).findings()[NAME]
    assert finding.title == "backward() runs inside autocast"


@pytest.mark.parametrize("which", [3, 4])
def test_a_single_use_of_old_copies_is_not_named(which: int, tmp_path: Path) -> None:
    calls = iter(range(8))

    def step(model: Model, optimizer: torch.optim.Optimizer) -> None:
        with half():
            one_step(model, optimizer, loss_of(model))
            if next(calls) == which:
                one_step(model, optimizer, loss_of(model))

    finding = trained(tmp_path, step, steps=8).findings()[NAME]
    assert finding.title == "backward() runs inside autocast"


def test_copies_of_a_context_that_is_never_left_grow_old(tmp_path: Path) -> None:
    with half():
        seen = trained(tmp_path, lambda model, optimizer: one_step(model, optimizer, loss_of(model)), steps=20)
    finding = seen.findings()[NAME]
    assert "entered earlier" in finding.cause
    assert 8 == finding.evidence["stale_updates"]
    assert "was 8 updates behind" in finding.cause


def test_a_search_for_old_copies_changes_no_weight(tmp_path: Path) -> None:
    weights = []
    for is_watched in (True, False):
        torch.manual_seed(0)
        model = Model()
        optimizer = sgd(model)
        with watching(tmp_path, model, optimizer) if is_watched else nullcontext():
            for _ in range(8):
                three_steps(model, optimizer)
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*weights, strict=True))


STALE: dict[str, Any] = {
    "call": "AdamW.step()",
    "line": "loop/train.py:125",
    "device": "cuda",
    "dtype": "bfloat16",
    "stale_step": 9,
    "stale_updates": 1,
    "stale_numbers": 300,
    "compared_numbers": 4096,
    "tensors": ["head.weight"],
}


def autocast_scope_with_old_copies() -> Stream:
    return mistaken("autocast_scope", first_step=8, **STALE)


def test_the_words_say_how_old_the_copies_are() -> None:
    finding = findings(autocast_scope_with_old_copies())[NAME]
    assert finding.cause.endswith(
        "At step 9 the oldest of those compared (head.weight) was 1 update behind, and 300 of 4096 numbers in them"
        " were not those of the weights in bfloat16."
    )
    assert "used copies from before it, seen since step 8" in finding.cause
    assert finding.fix.startswith("Leave autocast before AdamW.step() at loop/train.py:125")


def test_old_copies_replace_the_words_of_an_earlier_event() -> None:
    stream = autocast_scope().event("usage.autocast_scope", caller="loop/train.py:120", **STALE)
    assert findings(stream)[NAME].title == "Forward passes use old copies of the weights"


def test_the_words_have_both_lines() -> None:
    finding = findings(autocast_scope())[NAME]
    assert "backward() runs inside autocast" == finding.title
    assert finding.cause.startswith(
        "backward() at loop/train.py:124 runs inside the autocast context entered at loop/train.py:120."
    )
    assert finding.fix.startswith("Move backward() at loop/train.py:124 out of the autocast block")


@pytest.mark.parametrize("stale", [True, False])
def test_a_loss_of_old_weights_that_diverges_is_a_consequence(stale: bool) -> None:
    copies = {"stale_step": 3, "stale_updates": 4, "stale_numbers": 9, "compared_numbers": 10} if stale else {}
    scope = findings(mistaken("autocast_scope", call="SGD.step()", line="train.py:9", dtype="bfloat16", **copies))[NAME]
    step = scope.first_step + 10
    diverged = Finding("diverged", "page", first_step=step, opened_step=step, last_step=step, cause="", fix="")
    assert stale == explains(scope, diverged)
