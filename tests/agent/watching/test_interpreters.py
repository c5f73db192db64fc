"""Training is the same under other settings of the interpreter and in spawned processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent import programs
from tests.agent.nursery import BEGIN, WATCHED, twins
from tests.agent.programs import steps
from tests.agent.watching.fail_open import TRAIN

pytestmark = pytest.mark.long


SPAWNS = """
import torch.multiprocessing as multiprocessing


def child(model, optimizer, scaler, queue):
    of = model, optimizer, scaler
    step(of=of, x=torch.ones(6, 8))
    queue.put(bits(*of))


if __name__ == "__main__":
    run = watch(model, optimizer, scaler)
    step(x=torch.ones(6, 8))
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(model, optimizer, scaler, queue))
    process.start()
    process.join()
    print(queue.get(), process.exitcode)
    losses.clear()
    step(x=torch.ones(6, 8))
    print(bits())
"""


def test_a_watched_model_optimizer_and_scaler_go_to_a_spawned_process(tmp_path: Path) -> None:
    both = twins(SPAWNS, tmp_path, levels=1)
    assert [] == both.extra_lines()
    assert 0 == both.watched.code
    assert [0, 1] == steps(both.watched.stream())


@pytest.mark.parametrize(
    "settings",
    [{"PYTHONOPTIMIZE": "2"}, {"PYTHONWARNINGS": "error", "PYTHONHASHSEED": "7"}, {"PYTHONDEVMODE": "1"}],
    ids=lambda settings: next(iter(settings)),
)
def test_under_another_interpreters_settings_a_run_is_the_same(settings: dict[str, str], tmp_path: Path) -> None:
    quiet = "import gc; gc.collect()\n"
    both = twins(TRAIN + quiet, tmp_path, settings=settings)
    assert [] == both.extra_lines()
    assert 0 == both.watched.code
    assert 30 == len(steps(both.watched.stream()))


def test_disabled_means_that_nothing_is_imported_patched_or_written(tmp_path: Path) -> None:
    body = """
        before = set(sys.modules)
        patched = torch.amp.GradScaler.step, torch.Tensor.backward
        run = watch(model, optimizer, scaler)
        for _ in range(3):
            step()
            run.log(loss=1.0)
        run.close()
        print(sorted(name for name in set(sys.modules) - before if name.startswith(("ammeter", "torch._dynamo"))))
        print(patched == (torch.amp.GradScaler.step, torch.Tensor.backward), bits())
        """
    started = programs.start_fresh(body, tmp_path, begin=BEGIN + WATCHED, AMMETER_DISABLE="1").end()
    assert (0, "") == (started.code, started.err)
    assert started.out.startswith("[]\nTrue ")  # import ammeter has read the setting
    assert not started.folder.exists()
