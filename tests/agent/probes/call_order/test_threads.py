"""backward() in another thread is not the run's, and does not read gradients that autograd is setting right now."""

from __future__ import annotations

from pathlib import Path

from ammeter.wire.frames import Event
from tests.agent.programs import start

BODY = """
import sys, threading

sys.setswitchinterval(1e-5)
deep = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(40)])
sgd = torch.optim.SGD(deep.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
run = ammeter.watch(deep, sgd, scaler)
over = threading.Event()


def other():
    own = torch.nn.Linear(4, 4)
    while not over.is_set():
        own(torch.ones(2, 4)).sum().backward()
        torch.nn.utils.clip_grad_value_(own.parameters(), 1.0)


threads = [threading.Thread(target=other) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(100):
    scaler.scale(deep(torch.randn(4, 16)).square().mean()).backward()
    scaler.step(sgd)
    scaler.update()
    sgd.zero_grad()
over.set()
for thread in threads:
    thread.join()
run.close()
print("trained")
"""


def test_a_backward_in_another_thread_neither_crashes_the_run_nor_is_told_of(tmp_path: Path) -> None:
    ended = start(BODY, tmp_path).end()
    assert (0, "trained\n", "") == (ended.code, ended.out, ended.err)
    events = [frame.name for stream in ended.streams() for frame in stream if isinstance(frame, Event)]
    assert [] == [name for name in events if name.startswith(("usage.", "agent."))]
