"""36,000 steps: memory, descriptors, threads and journal are at the end what they were after two thirds."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from statistics import median

import pytest

from ammeter.wire.frames import Lost
from tests.agent import programs
from tests.agent.programs import bye, steps
from tests.agent.training import events

pytestmark = pytest.mark.long

STEPS, EVERY, CAP = 36_000, 400, 8 * 2**20

PROGRAM = """
import json, os, sys, threading
import torch
import ammeter
import ammeter.journal.writer

ammeter.journal.writer.Journal.__init__.__kwdefaults__.update(cap_bytes={cap}, segment_bytes={cap} // 16)
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=50)
run = ammeter.watch(model, optimizer, scaler, preset="{preset}")
batch = torch.randn(4, 4)
seen = []
for step in range({steps}):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = model(batch).float().square().mean()
    scaler.scale(loss if step % 997 else loss * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    run.log(metric=1.0)
    if step % {every} == 0:
        with open("/proc/self/statm") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        seen.append((resident, len(os.listdir("/proc/self/fd")), threading.active_count()))
run.close()
print(json.dumps(seen))
"""


@pytest.mark.parametrize("preset", ["default", "full"])
def test_a_long_run_grows_in_nothing(preset: str, tmp_path: Path) -> None:
    begin = PROGRAM.format(cap=CAP, steps=STEPS, every=EVERY, preset=preset)
    ended = programs.start_fresh("", tmp_path, begin=begin).end(seconds=270)
    assert (0, "") == (ended.code, ended.err)
    seen = json.loads(ended.out)
    # The allocator has the pages that it needs after some 17,000 steps; 0.4 bytes a step were measured from there.
    late = [(EVERY * at, resident) for at, (resident, _, _) in enumerate(seen)][2 * len(seen) // 3 :]
    # The median of the slopes between any two samples: the allocator takes and gives whole pages now and then, and one
    # such jump is no growth. 10 bytes a step is 1 KB in 100 steps: less than any object that would be kept for each.
    slope = median((after - before) / (there - here) for (here, before), (there, after) in combinations(late, 2))
    assert slope < 10, [resident for resident, _, _ in seen]
    assert 1 == len({(files, threads) for _, files, threads in seen[len(seen) // 2 :]})
    assert sum(path.stat().st_size for path in ended.folder.rglob("*.seg")) < CAP + 2 * CAP // 16
    frames = ended.stream()
    assert [] == events(frames, "probe.failed")
    assert STEPS == len(steps(frames)) + sum(frame.steps for frame in frames if isinstance(frame, Lost))
    assert ("closed", "") == bye(frames)
