"""A run is what one thread trains; what other threads do with torch meanwhile is none of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import ammeter
from tests.agent.programs import start
from tests.agent.training import events, stream


def net(seed: int = 0) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    return model, torch.optim.SGD(model.parameters(), lr=1e-2)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, factor: float = 1.0) -> None:
    (model(torch.ones(4, 8)).square().mean() * factor).backward()
    optimizer.step()
    optimizer.zero_grad()


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_backward_pass_of_another_thread_is_no_part_of_the_loss_or_the_step(tmp_path: Path) -> None:
    model, optimizer = net()
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    other = net(1)
    for _ in range(10):
        in_thread(lambda: step(*other, factor=1e6)).join()
        step(model, optimizer)
    run.close()
    rows, frames = stream(run.id, tmp_path)
    assert [] == events(frames, "probe.failed")
    assert [1.0] * 10 == rows.scalar("micro_batches").tolist()
    assert 10 > rows.scalar("loss").max()


def test_of_several_threads_that_train_at_the_same_time_one_is_the_run(tmp_path: Path) -> None:
    nets = [net(seed) for seed in range(3)]
    run = ammeter.watch([model for model, _ in nets], [optimizer for _, optimizer in nets], dir=tmp_path)
    turns = threading.Barrier(3)

    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(20):
            turns.wait()
            step(model, optimizer)
        turns.wait()  # who is gone would be followed by another one

    for thread in [in_thread(lambda one=one: train(*one)) for one in nets]:  # type: ignore[misc]
        thread.join()
    run.close()
    rows, frames = stream(run.id, tmp_path)
    assert [] == events(frames, "probe.failed")
    assert 0 == rows.scalar("skipped").sum()
    assert 20 >= len(rows) >= 19


def test_a_thread_that_trains_in_place_of_the_one_that_called_watch_is_followed_and_so_is_the_next_one(
    tmp_path: Path,
) -> None:
    model, optimizer = net()
    run = ammeter.watch(model, optimizer, dir=tmp_path)

    def epoch() -> None:
        for _ in range(5):
            step(model, optimizer)

    for _ in range(3):
        in_thread(epoch).join()
    run.close()
    rows, _ = stream(run.id, tmp_path)
    assert 15 >= len(rows) >= 13
    assert 5 > rows.scalar("applied").max()


def test_what_another_thread_trains_is_not_looked_at(tmp_path: Path) -> None:
    """Its autograd may be setting the very gradient meanwhile, without the interpreter's lock: that could crash."""
    ours, theirs = net(0), net(1)
    run = ammeter.watch([ours[0], theirs[0]], [ours[1], theirs[1]], dir=tmp_path)
    assert run._session is not None
    usage: Any = next(probe for probe in run._session.probes.signals if probe.name == "usage")
    step(*ours)
    in_thread(lambda: step(*theirs)).join()
    for _ in range(3):
        step(*ours)
    looked_at = [account.optimizer() for account in usage._ledger.checkable()]
    run.close()
    assert [ours[1]] == looked_at


AT_THE_SAME_TIME = """
import threading

def net(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    return model, torch.optim.SGD(model.parameters(), lr=1e-2)

nets = [net(seed) for seed in range(3)]
run = ammeter.watch([model for model, _ in nets], [optimizer for _, optimizer in nets])
together = threading.Barrier(3)

def train(model, optimizer):
    for step in range(800):
        if step % 50 == 0:
            together.wait()
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

threads = [threading.Thread(target=train, args=one) for one in nets]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
run.close()
print("done", flush=True)
"""


def test_gradients_that_another_thread_trains_are_not_read(tmp_path: Path) -> None:
    """Memory that another thread releases at this moment ends the process."""
    for number in range(3):
        ended = start(AT_THE_SAME_TIME, tmp_path / str(number)).end()
        assert (0, "done\n") == (ended.code, ended.out), ended.err
