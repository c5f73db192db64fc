from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter.recording.schedule import budget as schedule
from ammeter.recording.schedule.bucket import Bucket
from ammeter.tensors.slices import positions
from ammeter.wire.frames import Steps
from tests.agent.programs import start
from tests.agent.training import Model, Recipe, events, stream, train, watching


def _poison(at: int, name: str = "middle.weight", count: int = 5, value: float = math.nan) -> Recipe:
    """A run in which some elements of a weight turn non-finite by themselves before a step."""

    def hook(step: int, model: torch.nn.Module) -> None:
        if step == at:
            with torch.no_grad():
                dict(model.named_parameters())[name].view(-1)[:count] = value

    return Recipe(precision="fp32", optimizer="sgd", steps=at + 6, hook=hook)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("share", [math.inf, 0.001])
def test_poisoned_weights_are_named_and_counted_at_once(
    share: float, value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the budget allows next to no reading: then the loss, which is NaN at once, has them read."""
    monkeypatch.setitem(schedule.PRESETS, "default", lambda budget: (share,) * 4)
    monkeypatch.setattr(Bucket, "allows", lambda bucket: math.isinf(bucket.share))
    rows, frames = stream(train(_poison(8, value=value), watched=True, dir=tmp_path).run, tmp_path)
    first = events(frames, "weights.nonfinite")[0]
    assert 8 == first.step
    assert "middle.weight" in first.data["tensors"]
    assert first.data["elements"] >= 5
    if share == math.inf:
        assert 7 == first.data["last_finite"]
        assert rows.scalar("weights_nonfinite")[8] >= 5
        assert rows.stat("weight.nonfinite")[[t.name for t in rows.schema.tensors].index("middle.weight")][8] >= 5


@pytest.mark.parametrize("everywhere", [True, False])
def test_a_reading_of_a_part_proves_finite_only_what_it_would_have_met(everywhere: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 4096)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    assert run._session is not None
    run._session.governor.weights.share = math.inf
    for step in range(12):
        if step == 8:
            with torch.no_grad():
                model.weight[:, :] = model.weight + math.nan if everywhere else model.weight
                model.weight[3001, 17] = math.nan
        optimizer.zero_grad()
        model(torch.ones(2, 64)).mean().backward()
        optimizer.step()
    run.close()
    emitted = events(stream(run.id, tmp_path)[1], "weights.nonfinite")
    assert emitted[0].data["last_finite"] is None
    assert (7 if everywhere else None) == emitted[0].data.get("last_finite_part")


def test_it_is_written_when_the_step_closes_and_not_told_again_while_nothing_changes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    assert run._session is not None
    run._session.governor.weights.share = math.inf

    def step() -> None:
        optimizer.zero_grad()
        (model(torch.ones(2, 4)) * torch.tensor([0.0, 1.0, 1.0])).sum().backward()
        optimizer.step()

    step()
    with torch.no_grad():
        model.weight[1, 2] = math.inf
    step()
    optimizer.zero_grad()
    emitted = events(stream(run.id, tmp_path)[1], "weights.nonfinite")
    assert [(1, ["weight"], 1, 1, 0)] == [(event.step, *event.data.values()) for event in emitted]
    for _ in range(120):
        step()
    run.close()
    frames = stream(run.id, tmp_path)[1]
    assert [1, 101] == [event.step for event in events(frames, "weights.nonfinite")]
    assert 122 == len([frame for frame in frames if isinstance(frame, Steps)])


def test_frozen_weights_are_read_too_when_the_loss_is_not_finite(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model()
    model.first.requires_grad_(False)
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    run = ammeter.watch(model, optimizer, scaler, dir=tmp_path)
    for step in range(6):
        if step == 3:
            model.first.weight.view(-1)[7] = math.nan
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(8, 12)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    run.close()
    (only,) = events(stream(run.id, tmp_path)[1], "weights.nonfinite")
    assert (3, ["first.weight"], 1, 1) == (only.step, *list(only.data.values())[:3])


def test_weights_that_are_whole_are_not_told_of_when_a_loss_is_not_finite(tmp_path: Path) -> None:
    recipe = Recipe(spoil=lambda step, loss: loss * (math.nan if step % 5 == 4 else 1.0))
    frames = stream(train(recipe, watched=True, dir=tmp_path).run, tmp_path)[1]
    assert 10 == len(events(frames, "step.skipped"))
    assert [] == events(frames, "weights.nonfinite")


def test_weights_whose_squares_are_too_large_for_float32_are_finite(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.full((50,), 1e30))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    run = ammeter.watch(torch.nn.ParameterList([weight]), optimizer, dir=tmp_path)
    for _ in range(3):
        (weight.sum() * math.nan).backward()  # type: ignore[no-untyped-call]
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    run.close()
    rows, frames = stream(run.id, tmp_path)
    assert not math.isfinite(rows.scalar("loss")[0])
    assert [] == events(frames, "weights.nonfinite")


MOMENTS: dict[str, tuple[Callable[..., Any], float, str]] = {
    "adam": (lambda parameters: torch.optim.Adam(parameters, lr=1e-3), 1e25, "exp_avg_sq"),
    "sgd": (lambda parameters: torch.optim.SGD(parameters, lr=0.0, momentum=0.9), math.inf, "momentum_buffer"),
}


@pytest.mark.parametrize("kind", MOMENTS)
def test_moments_that_overflow_are_named_although_the_weights_stay_finite(kind: str, tmp_path: Path) -> None:
    """The square of 1e25 is infinite in float32: Adam then divides by it, and the weight stands still."""
    make, slope, moment = MOMENTS[kind]
    model = torch.nn.ModuleDict({"first": torch.nn.Linear(3, 2), "last": torch.nn.Linear(2, 2)})
    optimizer = make(model.parameters())
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    assert run._session is not None
    run._session.governor.weights.share = math.inf
    for step in range(6):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        if step == 2 and kind == "adam":
            model["last"].bias.grad = torch.tensor([1.0, slope])
        elif step == 2:
            optimizer.state[model["last"].bias]["momentum_buffer"][1] = slope
        optimizer.step()
    run.close()
    found = events(stream(run.id, tmp_path)[1], "moments.nonfinite")
    assert [{"tensors": [f"last.bias.{moment}"], "count": 1, "elements": 1}] == [event.data for event in found]
    assert found[0].step in (2, 3)


HIDDEN = 5030
"""An element of the embedding that the first turn does not read."""


class Words(torch.nn.Module):
    """A large vocabulary, of which a batch uses a few words, and logits of which some are forbidden by -Inf."""

    def __init__(self, *, forbids: bool) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(4500, 2)
        self.head = torch.nn.Linear(2, 4500, bias=False)
        self.forbidden = torch.nn.Parameter(torch.zeros(4500))
        if forbids:
            self.forbidden.data[[2294, 2311]] = -torch.inf

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.embed(tokens)) + self.forbidden
        return torch.nn.functional.cross_entropy(logits, tokens)


@pytest.mark.parametrize("breaks", [True, False])
def test_a_nan_that_the_loss_does_not_show_is_met_in_one_of_the_turns(breaks: bool, tmp_path: Path) -> None:
    """The -Inf of the program, of which some are met in later turns only, are no fault."""
    assert not {2294, 2311} & set(positions(4500).tolist())
    assert HIDDEN not in positions(9000).tolist()
    torch.manual_seed(0)
    model = Words(forbids=not breaks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(tmp_path, model, optimizer, preset="full") as seen:
        for step in range(220):
            if breaks and step == 5:
                model.embed.weight.data.view(-1)[HIDDEN] = math.nan
            optimizer.zero_grad()
            model(torch.randint(100, (8,))).backward()
            optimizer.step()
    found = seen.findings()
    assert breaks == ("nonfinite-weights" in found)
    if breaks:
        assert ("embed.weight", True) == (found["nonfinite-weights"].tensor, found["nonfinite-weights"].active)


RAISES = """
for step in range(8):
    optimizer.zero_grad()
    loss = model(torch.ones(3, 4)).square().mean()
    {check}
    loss.backward()
    optimizer.step()
    if step == 5:
        model.bias.data[0] = {value}
"""


@pytest.mark.parametrize(("value", "expected"), [("float('nan')", [["bias"]]), ("0.5", [])])
def test_the_weights_of_a_program_that_an_error_ends_are_read(value: str, expected: list[Any], tmp_path: Path) -> None:
    """As where the program, or an operator, refuses NaN before there is a loss."""
    ended = start(RAISES.format(check="if step == 6: raise ValueError('no')", value=value), tmp_path).end()
    assert "ValueError" in ended.err
    found = [event.data["tensors"] for event in events(ended.stream(), "weights.nonfinite")]
    assert expected == found
