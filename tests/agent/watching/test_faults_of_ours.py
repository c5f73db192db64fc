"""A fault of ours, wherever it happens: told once, its probe off, all else seen, and training the same bits."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter import journal, probes
from ammeter.recording.session import Session
from ammeter.recording.step_boundary import Boundary
from ammeter.report import diagnosis
from ammeter.torch_hooks import patch
from ammeter.watching import setup
from ammeter.wire.columns import measured
from tests.agent.training import Model, Outcome, Recipe, events, stream, train

ERRORS: dict[str, Callable[[], Exception]] = {
    "RuntimeError": lambda: RuntimeError("a fault of ours"),
    "MemoryError": MemoryError,
    "RecursionError": lambda: RecursionError("maximum recursion depth exceeded"),
}


def _saves_and_loads(_: int, model: torch.nn.Module) -> None:
    torch.save(model.state_dict(), io.BytesIO())
    model.load_state_dict(model.state_dict())


RECIPE = Recipe("fp16", clip=0.5, steps=12, hook=_saves_and_loads)
STEP = 3

COLUMNS = {
    "loss": ("loss",),
    "gradients": ("grad_norm",),
    "scaler": ("scale", "applied"),
}
"""Of some probes, columns that nobody else fills, and that are there at every step."""

KINDS = {kind.name: kind for kind in (*probes.ALL.signals, probes.ALL.resources, probes.ALL.user)}


@pytest.fixture(scope="module")
def bare() -> Outcome:
    return train(RECIPE, watched=False)


def in_attach(name: str, make: Callable[[], Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """After it has attached: the worst moment, for its handles are lost."""
    attach = KINDS[name].attach

    def fails(self: Any, guard: Any) -> Any:
        attach(self, guard)
        raise make()

    monkeypatch.setattr(KINDS[name], "attach", fails)


def in_callbacks(name: str, make: Callable[[], Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Session.guard

    def fails(self: Session, called: str, **where: Any) -> Any:
        def safe(call: Callable[..., None]) -> Callable[..., None]:
            def broken(*args: Any) -> None:
                if self.row.step >= STEP:
                    raise make()
                call(*args)

            return guard(self, called, **where)(broken if called == name else call)

        return safe

    monkeypatch.setattr(Session, "guard", fails)


def in_finish(name: str, make: Callable[[], Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    finish = KINDS[name].finish

    def fails(self: Any, row: Any) -> None:
        if row.step >= STEP:
            raise make()
        finish(self, row)

    monkeypatch.setattr(KINDS[name], "finish", fails)


CASES = [
    (name, place, list(ERRORS)[(number + turn) % len(ERRORS)])
    for number, (name, kind) in enumerate(KINDS.items())
    for turn, place in enumerate((in_attach, in_callbacks, in_finish))
    if (place is not in_finish or hasattr(kind, "finish"))
    and (place is not in_callbacks or name not in ("own_scaling", "hand_updates", "reduction", "collectives"))
]
"""Each probe fails at each of its places, each place with each error, and each probe with as many errors as places.
Nothing calls own_scaling beside a scaler of torch, hand_updates once each optimizer has stepped, reduction before a
step with bad gradients, and collectives in a single process."""


@pytest.mark.parametrize(("name", "place", "error"), CASES, ids=[f"{n}-{p.__name__}-{e}" for n, p, e in CASES])
def test_a_fault_of_a_probe_costs_that_probe_alone(
    name: str,
    place: Callable[[str, Callable[[], Exception], pytest.MonkeyPatch], None],
    error: str,
    bare: Outcome,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    place(name, ERRORS[error], monkeypatch)
    with caplog.at_level(logging.WARNING):
        outcome = train(RECIPE, watched=True, dir=tmp_path, preset="full")
    assert (bare.state, bare.losses) == (outcome.state, outcome.losses)
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"its {name} probe failed and is switched off ({error}" in line
    rows, frames = stream(outcome.run, tmp_path)
    assert RECIPE.steps == len(rows)
    (failed,) = events(frames, "probe.failed")
    assert name == failed.data["probe"]
    assert failed.data["error"].startswith(error)
    for other, columns in COLUMNS.items():
        for column in columns:
            seen = measured(rows.scalar(column)[STEP + 1 :])
            assert not seen.any() if other == name else seen.all(), column
    found = [reported.finding.verdict for reported in diagnosis.diagnose(tmp_path / outcome.run).findings]
    assert "agent-blind" in found


@pytest.mark.parametrize("error", ERRORS)
def test_a_fault_at_the_boundary_of_steps_leaves_training_as_it_is_and_is_told(
    error: str, bare: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    in_callbacks("boundary", ERRORS[error], monkeypatch)
    outcome = train(RECIPE, watched=True, dir=tmp_path)
    assert (bare.state, bare.losses) == (outcome.state, outcome.losses)
    assert 1 == len(caplog.records)
    _, frames = stream(outcome.run, tmp_path)
    assert ["boundary"] == [event.data["probe"] for event in events(frames, "probe.failed")]


@pytest.mark.parametrize("fails", ["hello", "append", "close"])
def test_a_journal_that_raises_what_it_never_should_leaves_training_as_it_is(
    fails: str, bare: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = getattr(journal.Journal, fails)

    def broken(self: journal.Journal, *args: Any) -> Any:
        if fails == "close":
            original(self)
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(journal.Journal, fails, broken)
    outcome = train(RECIPE, watched=True, dir=tmp_path)
    assert (bare.state, bare.losses) == (outcome.state, outcome.losses)
    messages = [record.getMessage() for record in caplog.records]
    assert 1 <= len(messages) == len(set(messages)) <= 4  # each part that writes says it once
    assert "a fault of ours" in caplog.text


def test_an_error_that_cannot_say_what_it_is_is_told_by_its_name(
    bare: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("nothing to say")

    in_callbacks("gradients", Mute, monkeypatch)
    outcome = train(RECIPE, watched=True, dir=tmp_path)
    assert bare.state == outcome.state
    assert "its gradients probe failed and is switched off (Mute: " in caplog.text


def test_an_interrupt_inside_ours_reaches_the_program_which_goes_on_and_is_seen_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_update, interrupts = Boundary._after_update, [4, 9]

    def interrupted(self: Boundary, *args: Any) -> None:
        if interrupts and self._session.row.step == interrupts[0]:
            interrupts.pop(0)
            raise KeyboardInterrupt
        after_update(self, *args)

    monkeypatch.setattr(Boundary, "_after_update", interrupted)
    torch.manual_seed(0)
    model = Model()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=64.0)
    run = ammeter.watch(model, optimizer, scaler, dir=tmp_path)
    stopped = 0
    for _ in range(20):
        try:
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(4, 12)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        except KeyboardInterrupt:
            stopped += 1
    run.close()
    assert 2 == stopped
    rows, frames = stream(run.id, tmp_path)
    assert list(range(20)) == rows.steps.tolist()
    assert [] == events(frames, "probe.failed")
    assert [] == patch.attached()


@pytest.mark.parametrize("behind", [True, False])
def test_an_interrupt_at_a_write_loses_nothing_else(
    behind: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    write, counted = os.write, [0]

    def interrupted(file: int, data: bytes) -> int:
        counted[0] += 1
        if counted[0] == 5 and not behind:
            raise KeyboardInterrupt
        written = write(file, data)
        if counted[0] == 5:
            raise KeyboardInterrupt
        return written

    monkeypatch.setattr(os, "write", interrupted)
    monkeypatch.setattr("ammeter.recording.row_queue.BATCH_SECONDS", 0.0)
    stopped = 0
    for _ in range(20):
        try:
            optimizer.zero_grad()
            model(torch.ones(4, 12)).square().mean().backward()
            optimizer.step()
        except KeyboardInterrupt:
            stopped += 1
    monkeypatch.setattr(os, "write", write)
    run.close()
    assert 1 == stopped
    rows, frames = stream(run.id, tmp_path)
    assert not [frame for frame in frames if type(frame).__name__ == "Lost"]
    assert len(rows) >= 19 - (not behind)


def test_a_watch_that_fails_before_its_probes_closes_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(setup, "Session", fails)
    model = torch.nn.Linear(2, 2)
    run = ammeter.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), dir=tmp_path)
    assert run.path is None
    (folder,) = (folder for place in tmp_path.iterdir() for folder in journal.streams(place))
    assert not journal.is_alive(folder)
