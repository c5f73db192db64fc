"""The notes know what a program loaded before watch(), keep nothing alive, and never disturb the program."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.preparation import observer as module
from ammeter.preparation.notes import MAX_NOTES, MODEL, OPTIMIZER, SCALER, SCHEDULER
from ammeter.preparation.observer import observer
from ammeter.torch_hooks import patch
from tests.agent.preparation.resumed_run import ALL, Parts, resumed, saved
from tests.agent.training import watching


@pytest.fixture(autouse=True)
def _noted() -> Iterator[None]:
    observer.begin()
    yield
    observer.stop()
    observer.error = ""


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (ALL, set()),
        (("model", "scaler", "scheduler"), {"resume-mismatch"}),
        (("model", "scheduler"), {"resume-mismatch"}),
        (("model", "optimizer", "scheduler"), {"scaler-not-restored"}),
        (("model",), {"resume-mismatch"}),
        ((), set()),
    ],
    ids=["everything", "no optimizer", "a schedule only", "no scaler", "the weights of this run only", "nothing"],
)
def test_a_resume_before_watch_is_judged_by_what_it_loaded(
    names: tuple[str, ...], expected: set[str], tmp_path: Path
) -> None:
    seen = resumed(saved(tmp_path / "kept"), tmp_path / "journals", *names)
    assert expected == set(seen.findings())


def test_fine_tuning_with_other_settings_is_silent(tmp_path: Path) -> None:
    seen = resumed(saved(tmp_path / "kept"), tmp_path / "journals", "model", lr=0.001)
    assert {} == seen.findings()
    (event,) = seen.events("checkpoint.restored")
    assert event.data["fits"] is False


def test_fine_tuning_from_weights_alone_is_silent(tmp_path: Path) -> None:
    path = saved(tmp_path / "kept")
    torch.save({"model": torch.load(path, weights_only=True)["model"]}, path)
    observer.take()
    assert {} == resumed(path, tmp_path / "journals", "model").findings()


def test_the_restored_parts_are_events_of_the_first_step(tmp_path: Path) -> None:
    seen = resumed(saved(tmp_path / "kept"), tmp_path / "journals", *ALL)
    restored = {name: seen.events(f"{name}.restored") for name in ("checkpoint", *ALL)}
    assert {name: [0] for name in restored} == {
        name: [event.step for event in events] for name, events in restored.items()
    }
    data = {name: events[0].data for name, events in restored.items()}
    assert (str(tmp_path / "kept" / "run.pt"), True) == (data["checkpoint"]["path"], data["checkpoint"]["fits"])
    assert ({"float32": 35}, {"float32": 35}) == (data["optimizer"]["saved"], data["optimizer"]["state"])
    assert 2.0**14 == data["scaler"]["scale"]
    assert "resumed_run.py" in data["model"]["caller"]


def test_an_optimizer_that_is_built_anew_after_the_load_is_named_with_the_line(tmp_path: Path) -> None:
    state = torch.load(saved(tmp_path / "kept"), weights_only=True)
    parts = Parts()
    parts.load(state, *ALL)
    parts.optimizer = torch.optim.SGD(parts.model.parameters(), lr=0.01, momentum=0.9)
    parts.scheduler = torch.optim.lr_scheduler.StepLR(parts.optimizer, 2)
    finding = parts.watched(tmp_path).findings()["resume-mismatch"]
    assert "into an optimizer that does not step" in finding.cause
    assert "resumed_run.py:" in finding.cause


def test_a_scaler_that_is_built_anew_after_the_load_is_named_with_the_line(tmp_path: Path) -> None:
    state = torch.load(saved(tmp_path / "kept"), weights_only=True)
    parts = Parts()
    parts.load(state, *ALL)
    parts.scaler = torch.amp.GradScaler("cpu")
    finding = parts.watched(tmp_path).findings()["scaler-not-restored"]
    assert "another GradScaler loaded the state (at " in finding.cause
    assert "resumed_run.py:" in finding.cause


def test_a_scaler_that_starts_at_the_scale_of_the_checkpoint_is_silent(tmp_path: Path) -> None:
    state = torch.load(saved(tmp_path / "kept"), weights_only=True)
    parts = Parts()
    parts.load(state, "model", "optimizer", "scheduler")
    parts.scaler = torch.amp.GradScaler("cpu", init_scale=state["scaler"]["scale"], growth_interval=2)
    assert {} == parts.watched(tmp_path).findings()


def test_a_scaler_is_missed_even_if_its_optimizer_has_no_state(tmp_path: Path) -> None:
    path = saved(tmp_path / "kept", momentum=0.0)
    seen = resumed(path, tmp_path / "journals", "model", "optimizer", "scheduler", momentum=0.0)
    assert {"scaler-not-restored"} == set(seen.findings())


def test_an_optimizer_that_trained_here_before_watch_is_not_taken_for_a_resumed_one(tmp_path: Path) -> None:
    parts = Parts()
    for _ in range(3):
        parts.step()
    parts.scaler = torch.amp.GradScaler("cpu")
    assert {} == parts.watched(tmp_path).findings()


def test_a_state_that_is_cast_after_the_load_is_found(tmp_path: Path) -> None:
    state = torch.load(saved(tmp_path / "kept"), weights_only=True)
    parts = Parts()
    parts.load(state, *ALL)
    for entry in parts.optimizer.state.values():
        entry["momentum_buffer"] = entry["momentum_buffer"].half()
    finding = parts.watched(tmp_path).findings()["resume-mismatch"]
    assert "restored in float32 and then cast to float16" in finding.title


def test_a_run_without_notes_says_so(tmp_path: Path) -> None:
    from ammeter.wire.frames import Hello
    from tests.agent.training import stream

    def fact(parts: Parts) -> str | None:
        with watching(tmp_path, parts.model, parts.optimizer, parts.scaler) as seen:
            parts.step()
        return next(
            frame.environment.get("before_watch") for frame in stream(seen.run, tmp_path)[1] if isinstance(frame, Hello)
        )

    assert fact(Parts()) is None
    observer.stop()
    assert "not observed" == fact(Parts())


def test_notes_keep_nothing_alive_and_are_bounded(tmp_path: Path) -> None:
    parts = Parts()
    parts.step()
    state = parts.state()
    torch.save(state, tmp_path / "run.pt")
    parts.load(state, *ALL)
    refs = [weakref.ref(part) for part in vars(parts).values()]
    for _ in range(MAX_NOTES):
        torch.load(tmp_path / "run.pt", weights_only=True)
    notes = observer.take()
    assert MAX_NOTES == len(list(notes))
    assert [] == notes.restored(SCHEDULER)  # the oldest, because each of the files has state of a training
    del parts, state
    gc.collect()
    assert [None] * 4 == [ref() for ref in refs]


def test_files_of_a_data_set_do_not_displace_the_checkpoint(tmp_path: Path) -> None:
    parts = Parts()
    torch.save(parts.state(), tmp_path / "run.pt")
    torch.save({"x": torch.ones(3)}, tmp_path / "sample.pt")
    parts.load(torch.load(tmp_path / "run.pt", weights_only=True), *ALL)
    for _ in range(2 * MAX_NOTES):
        torch.load(tmp_path / "sample.pt", weights_only=True)
    notes = observer.take()
    assert str(tmp_path / "run.pt") in [file.path for file in notes.files()]
    assert [1, 1, 1, 1] == [len(notes.restored(part)) for part in (OPTIMIZER, SCALER, SCHEDULER, MODEL)]


def test_an_error_of_ours_never_reaches_the_program_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "kept")

    def fail(_: Any) -> Any:
        raise RuntimeError("ours")

    monkeypatch.setattr(module, "contents_of", fail)
    seen = resumed(path, tmp_path / "journals", *ALL)
    (event,) = seen.events("probe.failed")
    assert ("preparation", "RuntimeError: ours") == (event.data["probe"], event.data["error"])


def test_what_is_pickled_while_calls_are_noted_has_nothing_of_ours() -> None:
    noted = Parts()
    data = [pickle.dumps(part) for part in (noted.optimizer, noted.scaler)]
    assert [] == [text for text in data if b"ammeter" in text]


def test_a_loaded_state_is_the_same_with_notes_and_without(tmp_path: Path) -> None:
    path = saved(tmp_path / "kept")

    def trained() -> str:
        parts = Parts()
        parts.load(torch.load(path, weights_only=True), *ALL)
        for _ in range(4):
            parts.step()
        return repr(parts.state())

    torch.set_printoptions(precision=20)  # type: ignore[no-untyped-call]
    noted = trained()
    observer.stop()
    assert noted == trained()
    torch.set_printoptions(profile="default")  # type: ignore[no-untyped-call]


def test_the_last_run_ends_the_notes(tmp_path: Path) -> None:
    assert patch.attached()
    one, other = Parts(), Parts()
    with watching(tmp_path, one.model, one.optimizer, one.scaler):
        with watching(tmp_path, other.model, other.optimizer, other.scaler):
            pass
        assert "Optimizer.__init__" in patch.attached()
    assert [] == patch.attached()


def test_a_second_watch_has_the_notes_made_during_the_first_run(tmp_path: Path) -> None:
    """A notebook: the cell that builds and watches runs again, now with a checkpoint, but without its optimizer."""
    path = saved(tmp_path / "kept")
    first = Parts()
    with watching(tmp_path, first.model, first.optimizer, first.scaler):
        first.step()
        seen = resumed(path, tmp_path, "model", "scaler", "scheduler")
    assert "resume-mismatch" in seen.findings()


def test_a_file_of_another_model_is_no_resume(tmp_path: Path) -> None:
    path = saved(tmp_path / "kept")
    teacher = Parts()
    teacher.load(torch.load(path, weights_only=True), "model")
    parts = Parts()
    seen = parts.watched(tmp_path)
    assert {} == seen.findings()
    assert [] == seen.events("model.restored")
    assert isinstance(teacher.model, torch.nn.Linear)
    assert 1 == len(seen.events("checkpoint.restored"))
