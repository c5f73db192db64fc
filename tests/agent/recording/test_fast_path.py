"""Steps that are rested in: every one has its row, and the first sign of trouble is seen in the step that has it."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import ammeter
from ammeter import journal
from ammeter.journal import directives
from ammeter.recording import budget, fast_path, session
from ammeter.recording.budget import STRETCH, Attention, Bucket, Governor
from ammeter.recording.fast_path import Resting
from tests.agent.training import Recipe, events, stream, train

AWAKE = 6
"""Steps at first in which nobody rests here."""


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rests from AWAKE steps on, for ever, unless something happens. Holds the steps in which it began to rest."""
    monkeypatch.setattr(budget, "YOUNG", AWAKE)
    monkeypatch.setattr(Attention, "_rest", lambda self, seconds: 10**6)
    monkeypatch.setattr(Bucket, "allows", lambda self: False)
    monkeypatch.setattr(Governor, "due", lambda self: False)
    began: list[int] = []
    begin = Resting.begin

    def noted(self: Resting, now: float) -> None:
        began.append(self._session.row.step)
        begin(self, now)

    monkeypatch.setattr(Resting, "begin", noted)
    return began


def _bits(rows: Any, name: str) -> list[int]:
    """What was not measured is a NaN of its own, which no comparison of numbers tells from another."""
    bits: list[int] = np.ascontiguousarray(rows.scalar(name), np.float32).view(np.uint32).tolist()
    return bits


def measured(rows: Any, name: str) -> list[float]:
    return [float(each) for each in rows.scalar(name)]


RECIPES = {
    "fp16": Recipe("fp16", steps=60),
    "fp16, clip": Recipe("fp16", clip=1.0, steps=60),
    "fp16, accumulated": Recipe("fp16", accumulate=3, clip=1.0, steps=40),
    "bf16": Recipe("bf16", steps=60),
    "bf16, clip, accumulated": Recipe("bf16", clip=0.5, accumulate=2, steps=40),
    "fp32, sgd": Recipe("fp32", optimizer="sgd", steps=60),
}
SAME = (
    *("loss", "micro_batches", "samples", "tokens", "applied", "skipped"),
    *("scale", "growth_tracker", "found_inf"),
)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
@pytest.mark.parametrize("flush", [0.0, 0.003, 10.0])
def test_a_step_that_is_rested_in_has_the_row_of_one_that_is_not(
    recipe: Recipe, flush: float, tmp_path: Path, rests: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_path, "FLUSH_SECONDS", flush)
    asleep = train(recipe, watched=True, dir=tmp_path / "asleep")
    assert 0 < rests[0] <= 2 * AWAKE
    with monkeypatch.context() as patch:
        patch.setattr(Resting, "able", lambda self: False)
        awake = train(recipe, watched=True, dir=tmp_path / "awake")
    rows, frames = stream(asleep.run, tmp_path / "asleep")
    others, told = stream(awake.run, tmp_path / "awake")
    assert list(range(recipe.steps)) == rows.steps.tolist() == others.steps.tolist()
    for name in SAME:
        assert _bits(others, name) == _bits(rows, name), name
    for name in ("scaler.growth", "scaler.backoff", "step.skipped"):
        assert [(each.step, each.data) for each in events(told, name)] == [
            (each.step, each.data) for each in events(frames, name)
        ]
    assert (rows.scalar("step_seconds")[1:] > 0).all()
    assert (rows.scalar("overhead_seconds") >= 0).all()
    assert (np.diff(rows.times) > 0).all()
    followed = rows.scalar("calls_followed")[2 * AWAKE :]
    assert (STRETCH if events(frames, "step.skipped") else 0) == followed.sum()
    assert [] == events(frames, "probe.failed")


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
def test_a_training_that_is_rested_from_ends_bit_for_bit_as_a_bare_one(
    recipe: Recipe, tmp_path: Path, rests: list[int]
) -> None:
    watched = train(recipe, watched=True, dir=tmp_path)
    assert rests
    bare = train(recipe, watched=False)
    assert bare.state == watched.state
    assert bare.losses == watched.losses


BAD = 30


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
def test_a_loss_that_is_not_finite_is_seen_in_its_step_with_all_its_gradients(
    recipe: Recipe, tmp_path: Path, rests: list[int]
) -> None:
    spoilt = Recipe(**{**vars(recipe), "spoil": lambda step, loss: loss * (math.nan if step == BAD else 1)})
    run = train(spoilt, watched=True, dir=tmp_path)
    rows, frames = stream(run.run, tmp_path)
    assert recipe.steps == len(rows.steps)
    assert [BAD] == [at for at, loss in enumerate(measured(rows, "loss")) if math.isnan(loss)][:1]
    if recipe.clip or recipe.precision == "fp16":
        first = next(each for each in events(frames, "gradient.nonfinite") if each.step >= BAD)
        assert BAD == first.step
        assert 0 < first.data["count"] == len(first.data["tensors"])
    if recipe.precision == "fp16":
        assert BAD in [each.step for each in events(frames, "step.skipped")]
    assert [] == events(frames, "probe.failed")


class Program:
    """A loop of one's own on a linear model, with what it does in its steps to be chosen."""

    def __init__(self, folder: Path, *, scaler: bool = False, **options: Any) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.model: Any = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10**6) if scaler else None
        self.run = ammeter.watch(self.model, self.optimizer, self.scaler, dir=folder, **options)
        assert self.run._session is not None
        self.session = self.run._session

    def step(self, x: torch.Tensor | None = None, factor: float = 1.0) -> None:
        self.optimizer.zero_grad()
        self.backward(x, factor)
        self.update()

    def loss(self, x: torch.Tensor | None = None) -> torch.Tensor:
        x = torch.ones(4, 8) if x is None else x
        with torch.autocast("cpu", torch.float16, enabled=self.scaler is not None):
            loss: torch.Tensor = self.model(x).float().mean()
        return loss

    def backward(self, x: torch.Tensor | None = None, factor: float = 1.0) -> None:
        loss = self.loss(x) * factor
        (self.scaler.scale(loss) if self.scaler else loss).backward()  # type: ignore[no-untyped-call]

    def update(self) -> None:
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()

    def read(self) -> tuple[Any, list[Any]]:
        self.run.close()
        rows, frames = stream(self.run.id, self.folder)
        assert list(range(len(rows.steps))) == rows.steps.tolist()
        assert [] == events(frames, "probe.failed")
        return rows, frames


@pytest.fixture(params=[False, True], ids=["plain", "scaled"])
def program(request: pytest.FixtureRequest, tmp_path: Path, rests: list[int]) -> Iterator[Program]:
    program = Program(tmp_path, scaler=request.param)
    yield program
    program.run.close()


def test_the_input_that_spoils_a_single_step_is_named(program: Program) -> None:
    bad = torch.ones(4, 8)
    bad[2, 3] = math.nan
    for step in range(40):
        program.step(bad if step == BAD else None)
        if step == BAD:
            program.model.load_state_dict(torch.nn.Sequential(*map(_fresh, program.model)).state_dict())
    rows, frames = program.read()
    assert 40 == len(rows.steps)
    (found,) = events(frames, "origin.found")
    assert (BAD, "input", "input") == (found.step, found.data["kind"], found.data["input"])
    assert 1 == found.data["nans"]


def test_the_micro_batch_that_spoils_a_single_step_is_named(program: Program) -> None:
    bad = torch.ones(4, 8)
    bad[2, 3] = math.nan
    for step in range(40):
        program.optimizer.zero_grad()
        for part in range(3):
            program.backward(bad if (step, part) == (BAD, 1) else None)
        program.update()
    _, frames = program.read()
    found = events(frames, "origin.found")[0]
    assert (BAD, "input", "input") == (found.step, found.data["kind"], found.data["input"])
    assert (1, 1, 2) == tuple(found.data[name] for name in ("nans", "micro_batch", "sample"))


def test_an_input_is_kept_no_longer_than_to_the_next_one(program: Program) -> None:
    """Of a batch that the program has let go of, nothing is left when the next one was used, nor behind close()."""
    given: list[weakref.ref[torch.Tensor]] = []
    for _ in range(40):
        x = torch.ones(4, 8)
        given.append(weakref.ref(x))
        program.step(x)
    del x
    assert [] == [ref for ref in given[:-1] if ref() is not None]
    program.run.close()
    assert given[-1]() is None


def test_passes_inside_of_backward_are_no_micro_batches(tmp_path: Path, rests: list[int]) -> None:
    """A checkpointed block goes forward again in backward, and back by a call of its own."""
    program = Program(tmp_path)
    model = program.model
    for _ in range(40):
        hidden = checkpoint(model[1], model[0](torch.ones(4, 8)), use_reentrant=True)
        program.optimizer.zero_grad()
        model[2](hidden).mean().backward()
        program.optimizer.step()
    rows, _ = program.read()
    assert rests
    assert [1.0] * 40 == measured(rows, "micro_batches")
    assert not np.isnan(rows.scalar("loss")).any()


def test_several_losses_may_go_back_in_one_call(tmp_path: Path, rests: list[int]) -> None:
    program = Program(tmp_path)
    for _ in range(40):
        program.optimizer.zero_grad()
        torch.autograd.backward([program.loss(), program.loss() * 3])
        program.optimizer.step()
    rows, _ = program.read()
    assert 40 == len(rows.steps)
    assert [1.0] * 40 == measured(rows, "micro_batches")
    assert not np.isnan(rows.scalar("loss")).any()


def _fresh(module: torch.nn.Module) -> torch.nn.Module:
    if isinstance(module, torch.nn.Linear):
        module.reset_parameters()
    return module


@pytest.mark.parametrize("order", ["step, update, zero_grad", "unscale, clip, step, update"])
def test_an_overflow_in_backward_is_a_skip_in_its_step_and_its_gradients_are_read(
    order: str, tmp_path: Path, rests: list[int]
) -> None:
    program = Program(tmp_path, scaler=True)
    assert program.scaler
    for step in range(40):
        program.optimizer.zero_grad()
        program.backward(factor=1e36 if step == BAD else 1.0)
        if "clip" in order:
            program.scaler.unscale_(program.optimizer)
            torch.nn.utils.clip_grad_norm_(program.model.parameters(), 1.0)
        program.update()
    rows, frames = program.read()
    assert [BAD] == np.flatnonzero(rows.scalar("skipped")).tolist()
    assert [0.0 if step == BAD else 1.0 for step in range(40)] == measured(rows, "applied")
    assert [2.0**10, 2.0**9] == rows.scalar("scale")[BAD : BAD + 2].tolist()
    (told,) = events(frames, "gradient.nonfinite")
    assert BAD == told.step
    assert 0 < told.data["count"]
    assert [BAD] == [each.step for each in events(frames, "scaler.backoff")]


def test_a_fused_optimizer_that_applies_nothing_has_skipped(tmp_path: Path, rests: list[int]) -> None:
    """It steps in any case, and its kernel reads what the scaler found."""
    program = Program(tmp_path, scaler=True)
    program.run.close()
    program.optimizer = torch.optim.SGD(program.model.parameters(), lr=1e-3, fused=True)
    program.run = ammeter.watch(program.model, program.optimizer, program.scaler, dir=tmp_path)
    rests.clear()
    for step in range(40):
        program.step(factor=1e36 if step == BAD else 1.0)
    rows, frames = program.read()
    assert 0 < rests[0] < BAD
    assert [BAD] == np.flatnonzero(rows.scalar("skipped")).tolist()
    assert 1.0 == rows.scalar("found_inf")[BAD]
    assert [BAD] == [each.step for each in events(frames, "gradient.nonfinite")]


def test_after_a_bad_step_nobody_rests_for_a_while(program: Program, rests: list[int]) -> None:
    for step in range(80):
        program.step(factor=math.inf if step == BAD and program.scaler else 1.0)
    program.read()
    began = [each for each in rests if each > BAD]
    if program.scaler:
        assert BAD + session.ALERT <= began[0] <= BAD + session.ALERT + 3
    else:
        assert 1 == len(rests)


@pytest.mark.parametrize("value", [float, int, np.float32, np.int64, lambda step: torch.tensor(float(step))])
def test_run_log_speaks_of_the_step_before(value: Callable[[int], Any], program: Program) -> None:
    for step in range(40):
        program.step()
        program.run.log(mine=value(step), samples=4)
        if step == 35:
            program.run.log(late=1.0)
    rows, _ = program.read()
    assert [float(step) for step in range(40)] == measured(rows, "mine")
    assert [4.0] * 40 == measured(rows, "samples")
    assert [35] == np.flatnonzero(~np.isnan(rows.scalar("late"))).tolist()


def test_what_is_logged_before_backward_is_of_that_step(program: Program, rests: list[int]) -> None:
    """As many programs do: the loss as soon as it is there, the learning rate when the step is over."""
    for step in range(40):
        program.optimizer.zero_grad()
        loss = program.loss()
        program.run.log(mine=step)
        (program.scaler.scale(loss) if program.scaler else loss).backward()  # type: ignore[no-untyped-call]
        program.update()
        program.run.log(rate=step)
    rows, _ = program.read()
    assert rests[0] < BAD
    assert [float(step) for step in range(40)] == measured(rows, "mine")
    assert [float(step) for step in range(40)] == measured(rows, "rate")


def test_a_program_that_logs_what_is_no_number_is_not_rested_from(program: Program, rests: list[int]) -> None:
    for _ in range(40):
        program.step()
        program.run.log(loss=np.ones(3))
    rows, _ = program.read()
    assert len(rests) <= 1
    assert 40 == len(rows.steps)


def test_a_rest_goes_on_until_somebody_asks_for_something(
    program: Program, rests: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether somebody has is looked up now and then, for which nobody wakes."""
    monkeypatch.setattr(fast_path, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(directives, "LOOK_SECONDS", 0.0)
    for step in range(40):
        if step == BAD:
            assert 1 == len(rests)
            journal.replace(program.session.journal.folder / "directives", b'[{"arm": "origin", "steps": 3}]')
        program.step()
    _, frames = program.read()
    assert BAD + 4 <= rests[1] <= BAD + 5
    if program.scaler:  # of what runs in float16 something is told in any case
        (peaks,) = events(frames, "activation.peaks")
        assert BAD + 3 <= peaks.step <= BAD + 4


def test_what_is_told_in_a_step_is_in_that_step(program: Program, tmp_path: Path) -> None:
    for step in range(40):
        program.step()
        if step == BAD:
            torch.save(
                {"model": program.model.state_dict(), "optimizer": program.optimizer.state_dict()}, tmp_path / "x"
            )
    rows, frames = program.read()
    (saved,) = events(frames, "checkpoint.saved")
    assert BAD <= saved.step <= BAD + 1
    assert 40 == len(rows.steps)


def test_a_closure_is_one_step_and_not_rested_from(tmp_path: Path, rests: list[int]) -> None:
    program = Program(tmp_path)

    def closure() -> float:
        program.optimizer.zero_grad()
        program.backward()
        return 1.0

    for _ in range(20):
        program.step()
    for _ in range(10):
        program.optimizer.step(closure)
    rows, _ = program.read()
    assert 30 == len(rows.steps)
    assert 1 == len(rests)


def test_no_closure_is_none(tmp_path: Path, rests: list[int]) -> None:
    program = Program(tmp_path)
    for step in range(40):
        program.optimizer.zero_grad()
        program.backward()
        program.optimizer.step(None) if step % 2 else program.optimizer.step(closure=None)
    rows, _ = program.read()
    assert 40 == len(rows.steps)
    assert [1.0] * 40 == measured(rows, "micro_batches")
    assert 1 == len(rests)


def test_a_scaler_that_is_passed_by_is_no_step_without_end(tmp_path: Path, rests: list[int]) -> None:
    program = Program(tmp_path, scaler=True)
    for _ in range(20):
        program.step()
    for _ in range(20):
        program.optimizer.zero_grad()
        program.backward()
        program.optimizer.step()
    rows, _ = program.read()
    assert 40 == len(rows.steps)
    assert [1.0] * 40 == measured(rows, "micro_batches")
    assert [1.0] * 40 == measured(rows, "applied")
    assert not np.isnan(rows.scalar("loss")).any()


def test_a_second_optimizer_ends_the_rest(tmp_path: Path, rests: list[int]) -> None:
    program = Program(tmp_path)
    for _ in range(20):
        program.step()
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)
    program.session.watched.join([], other)
    for _ in range(10):
        program.step()
        other.step()
    rows, _ = program.read()
    assert 30 == len(rows.steps)
    assert [2.0] * 8 == measured(rows, "applied")[22:]
    assert 1 == len(rests)


def test_a_disabled_scaler_is_as_good_as_none(tmp_path: Path, rests: list[int]) -> None:
    program = Program(tmp_path, scaler=True)
    program.run.close()
    program.scaler = torch.amp.GradScaler("cpu", enabled=False)
    program.run = ammeter.watch(program.model, program.optimizer, program.scaler, dir=tmp_path)
    rests.clear()
    for _ in range(40):
        program.step()
    rows, _ = program.read()
    assert 1 == len(rests)
    assert [1.0] * 40 == measured(rows, "applied")
    assert [1.0] * 40 == measured(rows, "micro_batches")
    assert np.isnan(rows.scalar("scale")).all()


@pytest.mark.parametrize("given", ["dict", "list", "inference", "keywords"])
def test_any_form_of_input_is_counted(given: str, tmp_path: Path, rests: list[int]) -> None:
    class Takes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(8, 1)

        def forward(self, batch: Any, scale: float = 1.0, mask: Any = None) -> torch.Tensor:
            x = batch["x"] if isinstance(batch, dict) else batch[0] if isinstance(batch, list) else batch
            out: torch.Tensor = self.fc(x.clone()).mean() * scale
            return out

    model = Takes()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    with torch.inference_mode(given == "inference"):
        x = torch.ones(5, 8)
    for _ in range(30):
        loss = (
            model(batch=x, mask=None)
            if given == "keywords"
            else model({"dict": {"x": x}, "list": [x]}.get(given, x), 2.0)
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    run.close()
    rows, frames = stream(run.id, tmp_path)
    assert [] == events(frames, "probe.failed")
    assert [5.0] * 30 == measured(rows, "samples")
    assert 1 == len(rests)


def test_of_batches_that_differ_the_usual_size_is_counted(tmp_path: Path, rests: list[int]) -> None:
    program = Program(tmp_path)
    for step in range(200):
        program.step(torch.ones(3 + step % 3, 8))
    rows, _ = program.read()
    assert 1 == len(rests)
    assert [3.0, 4.0, 5.0] == measured(rows, "samples")[:3]
    assert 200 * 4 == pytest.approx(np.nansum(rows.scalar("samples")), rel=0.2)


def test_a_function_mode_of_the_program_sees_nothing_of_us(tmp_path: Path, rests: list[int]) -> None:
    class Sees(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    def seen(program: Program) -> list[str]:
        with Sees() as mode:
            for step in range(40):
                program.step(factor=math.nan if step == BAD else 1.0)
        return list(mode.seen)

    program = Program(tmp_path)
    program.step()
    found = seen(program)
    rows, _ = program.read()
    assert [4.0] * 41 == measured(rows, "samples")
    assert 1 == len(rests)
    assert math.isnan(measured(rows, "loss")[BAD + 1])
    assert found == seen(program)


@pytest.mark.parametrize("place", ["_close", "_backward", "_stepping", "_put", "_flush"])
def test_a_fault_at_rest_wakes_and_training_goes_on(
    place: str, tmp_path: Path, rests: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_path, "FLUSH_SECONDS", 0.0)
    original, calls = getattr(Resting, place), [0]

    def fails(self: Resting, *args: Any) -> Any:
        calls[0] += 1
        if calls[0] == 10:
            raise ZeroDivisionError("a fault of ours")
        return original(self, *args)

    monkeypatch.setattr(Resting, place, fails)
    program = Program(tmp_path)
    for _ in range(60):
        program.step()
    program.run.close()
    rows, frames = stream(program.run.id, tmp_path)
    (told,) = events(frames, "probe.failed")
    assert "resting" == told.data["probe"]
    assert 1 == len(rests)
    assert 58 <= rows.steps[-1]
    assert 58 <= len(rows.steps)


def test_a_rest_costs_torch_compile_no_graph(tmp_path: Path, rests: list[int]) -> None:
    torch._dynamo.reset()
    counted = torch._dynamo.utils.counters
    counted.clear()
    program = Program(tmp_path)
    program.model = torch.compile(program.model, backend="eager")
    for step in range(40):
        program.step(factor=1.0 if step != BAD else 2.0)
        if step == AWAKE - 2:
            before = {name: dict(each) for name, each in counted.items()}
    assert before["stats"]["unique_graphs"] == counted["stats"]["unique_graphs"]
    assert rests
    rows, _ = program.read()
    assert 40 == len(rows.steps)
    torch._dynamo.reset()


def test_a_thread_that_trains_on_is_heard(program: Program) -> None:
    """The first one is still there, so that it stays the one that trains."""
    for _ in range(20):
        program.step()

    def more() -> None:
        for _ in range(10):
            program.step()

    thread = threading.Thread(target=more)
    thread.start()
    thread.join()
    for _ in range(10):
        program.step()
    rows, _ = program.read()
    assert 30 == len(rows.steps)


def _raw(program: Program, scaler: torch.amp.GradScaler) -> None:
    program.loss().backward()  # type: ignore[no-untyped-call]
    scaler.step(program.optimizer)
    scaler.update()


def _past(program: Program, scaler: torch.amp.GradScaler) -> None:
    scaler.scale(program.loss()).backward()  # type: ignore[no-untyped-call]
    program.optimizer.step()


def _clipped(program: Program, scaler: torch.amp.GradScaler) -> None:
    scaler.scale(program.loss()).backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(program.model.parameters(), 1.0)
    scaler.step(program.optimizer)
    scaler.update()


def _mixed(program: Program, scaler: torch.amp.GradScaler) -> None:
    for part in range(2):
        scaler.scale(program.loss()).backward()  # type: ignore[no-untyped-call]
        if part == 0:
            scaler.unscale_(program.optimizer)
    scaler.step(program.optimizer)
    scaler.update()


LATE = {
    "usage.loss_not_scaled": _raw,
    "usage.gradients_not_unscaled": _past,
    "usage.clip_before_unscale": _clipped,
    "usage.mixed_scale": _mixed,
}


@pytest.mark.parametrize("event", LATE)
def test_calls_that_change_their_order_late_are_told_in_the_next_step(
    event: str, tmp_path: Path, rests: list[int]
) -> None:
    program = Program(tmp_path, scaler=True)
    assert program.scaler
    for step in range(60):
        if step < BAD:
            program.step()
        else:
            program.optimizer.zero_grad()
            LATE[event](program, program.scaler)
    _, frames = program.read()
    assert rests[0] < BAD
    assert BAD <= events(frames, event)[0].step <= BAD + 1
    assert {event} == {each.name for each in frames if getattr(each, "name", "").startswith("usage.")}
