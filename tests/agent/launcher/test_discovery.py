"""`ammeter run` finds the optimizers, models and scalers of a program when its training begins."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from ammeter.wire.frames import Event, Steps
from tests.agent.launcher.launched import MODEL, hello, tensors
from tests.agent.programs import Ended, steps

pytestmark = pytest.mark.long

GAN = """
faker = torch.nn.Linear(4, 4)
faking = torch.optim.SGD(faker.parameters(), lr=0.01)
for _ in range(4):
    optimizer.zero_grad()
    model(faker(torch.randn(3, 4)).detach()).square().mean().backward()
    optimizer.step()
    faking.zero_grad()
    model(faker(torch.randn(3, 4))).mean().backward()
    faking.step()
"""

PHASES = """
for _ in range(3): step()
head = torch.nn.Linear(4, 2)
second = torch.optim.SGD(head.parameters(), lr=0.01)
for _ in range(3):
    second.zero_grad()
    head(torch.randn(3, 4)).square().mean().backward()
    second.step()
"""

SCALED = """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
for number in range(6):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = model(torch.randn(3, 4)).float().square().mean()
    scaler.scale(loss * (float("inf") if number == 0 else 1)).backward()
    scaler.step(optimizer)
    scaler.update()
"""

ACCUMULATES = """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
for number in range(4):
    optimizer.zero_grad()
    for _ in range(2):
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(3, 4)).float().square().mean() / 2
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""

CLIPS = """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
for number in range(4):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = model(torch.randn(3, 4)).float().square().mean()
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
"""

TWICE = """
rest = torch.optim.SGD(model.parameters(), lr=0.01)  # an earlier choice that is never stepped
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
for number in range(5):
    optimizer.zero_grad()
    scaler.scale(model(torch.randn(3, 4)).float().square().mean() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
"""

HOOKED = """
from torch.optim.optimizer import register_optimizer_step_pre_hook
register_optimizer_step_pre_hook(lambda *_: None)
for _ in range(4): step()
"""

ASSIGNS = """
def step():
    loss = model(torch.randn(3, 4)).square().mean()
    for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
        parameter.grad = gradient
    optimizer.step()
probe = torch.ones(4, requires_grad=True)
torch.autograd.grad(model(probe).sum(), [probe])  # differentiates by an input, and trains nothing
for _ in range(4): step()
"""

TRANSFORMS = """
weights = dict(model.named_parameters())
def loss_of(weights, x):
    return torch.func.functional_call(model, weights, (x,)).square().mean()
for _ in range(4):
    gradients = torch.func.grad(loss_of)({name: weight.detach() for name, weight in weights.items()}, torch.randn(3, 4))
    for name, gradient in gradients.items():
        weights[name].grad = gradient
    optimizer.step()
"""

NEW_EACH_STEP = """
for number in range(30):
    optimizer = torch.optim.SGD(torch.nn.Linear(4, 2).parameters(), lr=0.01)
    optimizer.step()
"""


PROGRAMS: dict[str, dict[str, Any]] = {
    "is a GAN": {"body": GAN},
    "has two phases": {"body": PHASES},
    "scales": {"body": SCALED},
    "scales and accumulates": {"body": ACCUMULATES},
    "clips before unscale_": {"body": CLIPS},
    "never applies a step": {"body": TWICE},
    "has hooks of its own": {"body": HOOKED},
    "assigns its gradients": {"body": ASSIGNS},
    "transforms its loss": {"body": TRANSFORMS},
    "makes an optimizer for each step": {"body": NEW_EACH_STEP},
}


def test_two_optimizers_that_take_turns_are_one_step(ended: Callable[[str], Ended]) -> None:
    frames = ended("is a GAN").stream()
    assert [0, 1, 2, 3] == steps(frames)
    names = tensors(frames)
    assert 6 == len(names)
    assert {"model0.0.weight", "model1.weight"} <= set(names)


def test_an_optimizer_that_appears_later_is_watched_from_then_on(ended: Callable[[str], Ended]) -> None:
    frames = ended("has two phases").stream()
    assert [0, 1, 2, 3, 4, 5] == steps(frames)
    assert [*MODEL, "model1.weight", "model1.bias"] == tensors(frames)


def test_with_a_scaler_the_first_step_is_seen_even_if_it_is_skipped(ended: Callable[[str], Ended]) -> None:
    frames = ended("scales").stream()
    assert [0, 1, 2, 3, 4, 5] == steps(frames)
    events = [(frame.name, frame.step) for frame in frames if isinstance(frame, Event)]
    assert ("step.skipped", 0) in events
    assert 1 == [name for name, _ in events].count("step.skipped")
    assert ("scaler.seen", 0) in events


def test_the_first_scaled_loss_is_neither_told_as_unscaled_nor_taken_for_the_loss(
    ended: Callable[[str], Ended],
) -> None:
    frames = ended("scales and accumulates").stream()
    assert [] == [frame.name for frame in frames if isinstance(frame, Event) and frame.name.startswith("usage.")]
    place = 4 * hello(frames).schema.scalars.index("loss")
    losses = [struct.unpack_from("<f", frame.values, place)[0] for frame in frames if isinstance(frame, Steps)]
    assert 4 == len(losses)
    assert all(0 < loss < 10 for loss in losses)


def test_a_clip_of_scaled_gradients_is_found_in_the_first_step_whose_norm_is_unscaled(
    ended: Callable[[str], Ended],
) -> None:
    frames = ended("clips before unscale_").stream()
    mistakes = [frame for frame in frames if isinstance(frame, Event) and frame.name == "usage.clip_before_unscale"]
    assert [0] == [event.step for event in mistakes]
    place = 4 * hello(frames).schema.scalars.index("grad_norm")
    norms = [struct.unpack_from("<f", frame.values, place)[0] for frame in frames if isinstance(frame, Steps)]
    assert 4 == len(norms)
    assert all(0 < norm < 10 for norm in norms)


def test_a_run_that_skips_every_step_is_seen_although_no_optimizer_ever_steps(ended: Callable[[str], Ended]) -> None:
    frames = ended("never applies a step").stream()
    assert 3 <= sum(isinstance(frame, Event) and frame.name == "step.skipped" for frame in frames)
    assert MODEL == tensors(frames)


def test_a_program_with_hooks_on_every_optimizer_is_watched_from_the_first_step_on(
    ended: Callable[[str], Ended],
) -> None:
    found = ended("has hooks of its own")
    assert (0, [0, 1, 2, 3]) == (found.code, steps(found.stream()))


@pytest.mark.parametrize("program", ["has hooks of its own", "assigns its gradients", "transforms its loss"])
def test_the_first_step_has_its_loss_and_its_norm(program: str, ended: Callable[[str], Ended]) -> None:
    """Watching begins in the middle of the first backward pass."""
    frames = ended(program).stream()
    assert [0, 1, 2, 3] == steps(frames)
    first = next(frame for frame in frames if isinstance(frame, Steps))
    assert 0 == first.step
    for name in ("loss", "grad_norm"):
        place = 4 * hello(frames).schema.scalars.index(name)
        assert 0 < struct.unpack_from("<f", first.values, place)[0] < 10


def test_a_program_that_makes_optimizers_all_the_time_does_not_grow_its_journal(ended: Callable[[str], Ended]) -> None:
    found = ended("makes an optimizer for each step")
    assert 0 == found.code
    assert len(tensors(found.stream())) <= 2 * 9
