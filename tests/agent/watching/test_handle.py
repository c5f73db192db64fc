from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ammeter
from ammeter import Run
from ammeter.probes.user import MAX_NAMES
from ammeter.wire.columns import measured
from ammeter.wire.frames import Hello
from tests.agent.training import events, stream

Watch = Callable[[], tuple[Run, Callable[[], None]]]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[Run, Callable[[], None]]]:
    """A run, and what makes one step in it."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    run = ammeter.watch(model, optimizer, dir=tmp_path)
    yield run, step
    run.close()


def _logged(run: Run, folder: Path, name: str) -> list[float]:
    rows, frames = stream(run.id, folder)
    assert [] == events(frames, "probe.failed")
    found: list[float] = rows.scalar(name)[measured(rows.scalar(name))].tolist()
    return found


def test_a_run_that_is_not_watched_takes_every_call() -> None:
    run = Run()
    run.log(loss=1.0)
    run.close()
    assert "" == run.id


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1, 1.0),
        (True, 1.0),
        (0.5, 0.5),
        (np.float64(0.25), 0.25),
        (np.int64(3), 3.0),
        (np.array([1.0, 3.0]), 2.0),
        (np.array(5), 5.0),
        (torch.tensor(2.0), 2.0),
        (torch.tensor([[2.0]], dtype=torch.float64), 2.0),
        (torch.tensor(3), 3.0),
        (torch.tensor([1.0, 2.0, 3.0]), 2.0),
        (torch.ones((), requires_grad=True), 1.0),
        (math.inf, math.inf),
        (-(10**400), -math.inf),
        (1e300, math.inf),
    ],
    ids=repr,
)
def test_a_number_in_any_dress_is_written(value: Any, written: float, watched: Any, tmp_path: Path) -> None:
    run, step = watched
    step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.log(metric=value)
        run.close()
    assert [written] == _logged(run, tmp_path, "metric")


class Raises:
    def __float__(self) -> float:
        raise RuntimeError("not now")

    def __repr__(self) -> str:
        return "raises"


@pytest.mark.parametrize(
    "value",
    [
        None,
        Raises(),
        "high",
        [1.0],
        {"a": 1},
        1j,
        np.array([]),
        np.array(["a"]),
        torch.empty(0),
        torch.tensor(1j),
        torch.empty(1, device="meta"),
    ],
    ids=repr,
)
def test_what_is_no_number_is_told_once_and_the_rest_is_written(
    value: Any, watched: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, step = watched
    with caplog.at_level(logging.WARNING):
        for count in range(3):
            step()
            run.log(metric=value, good=count)
        run.close()
    assert 1 == len(caplog.records)
    assert (
        f"ammeter ignores metric in run.log(): it is a {type(value).__name__}; use a number or a tensor" in caplog.text
    )
    assert [0.0, 1.0, 2.0] == _logged(run, tmp_path, "good")
    assert [] == _logged(run, tmp_path, "metric")


def test_a_value_that_is_a_number_again_is_written_again(watched: Any, tmp_path: Path) -> None:
    run, step = watched
    for value in (1.0, None, 3.0):
        step()
        run.log(accuracy=value)
    run.close()
    rows, _ = stream(run.id, tmp_path)
    assert [True, False, True] == measured(rows.scalar("accuracy")).tolist()


def test_many_names_at_once_are_one_hello(watched: Any, tmp_path: Path) -> None:
    run, step = watched
    step()
    run.log(**{f"metric/{index}": index for index in range(40)})
    run.close()
    rows, frames = stream(run.id, tmp_path)
    assert 2 == sum(isinstance(frame, Hello) for frame in frames)
    assert [float(index) for index in range(40)] == [rows.scalar(f"metric/{index}")[0] for index in range(40)]


def test_a_program_with_ever_new_names_fills_neither_the_journal_nor_the_log(
    watched: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, step = watched
    step()
    with caplog.at_level(logging.WARNING):
        for index in range(MAX_NAMES + 100):
            run.log(**{f"at step {index}": index})
    run.close()
    assert 20 == len(caplog.records)
    assert f"ammeter ignores at step {MAX_NAMES} in run.log(): the run already logs {MAX_NAMES} names" in caplog.text
    rows, _ = stream(run.id, tmp_path)
    assert f"at step {MAX_NAMES - 1}" == rows.schema.scalars[-1]


def test_what_is_logged_last_counts(watched: Any, tmp_path: Path) -> None:
    run, step = watched
    step()
    run.log(loss=1.0)
    run.log(loss=2.0)
    run.close()
    assert [2.0] == _logged(run, tmp_path, "loss")


def test_logging_before_the_first_step_belongs_to_it(watched: Any, tmp_path: Path) -> None:
    run, step = watched
    run.log(warmup=7)
    step()
    run.close()
    assert [7.0] == _logged(run, tmp_path, "warmup")


def test_nothing_is_heard_after_close(watched: Any, tmp_path: Path) -> None:
    run, step = watched
    step()
    run.close()
    step()
    run.log(late=1.0)
    run.close()
    rows, _ = stream(run.id, tmp_path)
    assert [0] == rows.steps.tolist()
    assert "late" not in rows.schema.scalars


class Session:
    """A session that ends here only when it is told so."""

    def __init__(self, ends: bool) -> None:
        self.ends = ends

    def close(self) -> bool:
        return self.ends


@pytest.mark.parametrize(("ends", "waits"), [(True, 1), (False, 0)])
def test_close_waits_for_the_collector_once_and_only_where_the_stream_ends(ends: bool, waits: int) -> None:
    calls: list[int] = []
    run = Run("id", Session(ends), lambda: calls.append(1))  # type: ignore[arg-type]
    run.close()
    run.close()
    assert waits == len(calls)


def test_a_forked_child_does_not_wait_for_the_collector(watched: Any) -> None:
    run, step = watched
    step()
    waited = os.pipe()
    run._await_end = lambda: os.write(waited[1], b"waited")
    child = os.fork()
    if child == 0:
        run.close()
        os._exit(0)
    os.waitpid(child, 0)
    os.set_blocking(waited[0], False)
    with pytest.raises(BlockingIOError):
        os.read(waited[0], 10)
    for end in waited:
        os.close(end)
    run._await_end = None


def test_two_runs_in_one_process_each_hear_their_own(tmp_path: Path) -> None:
    models = [torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    runs = [ammeter.watch(model, optimizer, dir=tmp_path) for model, optimizer in zip(models, optimizers, strict=True)]
    for _ in range(2):
        optimizers[1].zero_grad()
        models[1](torch.ones(1, 2)).sum().backward()
        optimizers[1].step()
    runs[0].close()
    optimizers[1].step()
    runs[1].close()
    assert [0, 3] == [len(stream(run.id, tmp_path)[0]) for run in runs]
