"""A process may call watch() several times."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.agent.nursery import twins
from tests.agent.programs import bye, steps

pytestmark = pytest.mark.long


LEFT = """
import gc


def left():
    \"\"\"What of ours is still there; nothing in a bare program.\"\"\"
    gc.collect()
    optimizers = sys.modules["torch.optim.optimizer"]
    hooks = [*optimizers._global_optimizer_pre_hooks.values(), *optimizers._global_optimizer_post_hooks.values()]
    taps = sys.modules["ammeter.torch_hooks.patch"].attached()
    files = []
    for each in os.listdir("/proc/self/fd"):
        try:
            files.append(os.readlink(f"/proc/self/fd/{each}"))
        except OSError:
            pass
    ours = [each for each in files if each.endswith((".seg", "/alive", "/shipper", ".lock", ".log"))]
    children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    return [taps, hooks, ours, threading.active_count() - 1, children]


"""


NOTHING = "[[], [], [], 0, []]\n"


SEVERAL = {
    "one after the other": """
        for count in range(3):
            run = watch(model, optimizer, scaler)
            for _ in range(4):
                step()
            run.close()
            print(left())
        """,
    "without closing the one before": """
        runs = []
        for count in range(3):
            runs.append(watch(model, optimizer, scaler))
            for _ in range(4):
                step()
        for run in runs:
            run.close()
        print(left())
        """,
    "and forget what it watched": """
        def train():
            of = parts(7)
            watch(*of)
            for _ in range(4):
                step(of=of)

        for count in range(3):
            train()
        """,
}


@pytest.mark.parametrize("name", SEVERAL)
def test_a_notebook_may_watch_several_times(name: str, tmp_path: Path) -> None:
    both = twins(LEFT + textwrap.dedent(SEVERAL[name]) + "\nprint(bits())\n", tmp_path)
    assert [] == both.extra_lines()
    streams = both.watched.streams()
    assert [4, 4, 4] == [len(steps(frames)) for frames in streams], "a watch() of the same objects ends the one before"
    assert all(bye(frames) for frames in streams)
    assert both.watched.out.count(NOTHING) == SEVERAL[name].count("left()") * (3 if name.startswith("one") else 1)
