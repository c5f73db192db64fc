"""A rank dies, torchrun starts all ranks again: it is one run, nobody is woken, and every life's steps are there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ammeter import journal
from ammeter.report.diagnosis import diagnose
from tests import forked
from tests.e2e.processes import Collector, Receiver, wait_for
from tests.server.feeding import curves

pytestmark = pytest.mark.long

SCRIPT = """
import os, signal, time, torch
import torch.distributed as distributed
from torch.distributed.fsdp import fully_shard

torch.manual_seed(0)
distributed.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(8, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3))
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
{watch}
for step in range(8):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    time.sleep(0.05)
    if first and step == 5 and distributed.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
distributed.destroy_process_group()
"""
WATCH = 'import ammeter; ammeter.watch(model, optimizer, name="elastic", preset="full")'
AMMETER = [sys.executable, "-m", "ammeter", "run", "--preset", "full", "--name", "elastic", "--"]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    started = Receiver()
    yield started
    started.stop()


@pytest.fixture
def collector(tmp_path: Path, receiver: Receiver) -> Iterator[Collector]:
    (tmp_path / "server").mkdir()
    started = Collector(tmp_path / "server", "--notify", receiver.apprise).start()
    yield started
    started.stop()


def torchrun(folder: Path, collector: Collector, through: list[str], watch: str, **environment: str) -> None:
    (folder / "script.py").write_text(SCRIPT.format(watch=watch))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2"]
    # in the store that torchrun 2.13 shares with its ranks gloo finds addresses of the life before, and may hang
    settings = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    settings |= {"AMMETER_URL": collector.url, "AMMETER_DIR": str(folder / "runs")}
    process = forked.Popen(
        [*through, *launcher, str(folder / "script.py")],
        imports=forked.LAUNCH,
        levels=2 if through else 1,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **settings, **environment},
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            process.terminate()  # torchrun ends its ranks, which are no longer in its group
            process.communicate()
    assert 0 == process.returncode, output


@pytest.mark.parametrize(
    ("through", "watch", "environment"),
    [([], WATCH, {}), ([], WATCH, {"AMMETER_RUN_ID": "night shift"}), (AMMETER, "", {})],
    ids=["by itself", "by name", "ammeter run"],
)
def test_ranks_that_are_started_again_are_one_run_and_nobody_is_woken(
    through: list[str],
    watch: str,
    environment: dict[str, str],
    collector: Collector,
    receiver: Receiver,
    tmp_path: Path,
) -> None:
    torchrun(tmp_path, collector, through, watch, **environment)
    (folder,) = (folder for folder in (tmp_path / "runs").iterdir())
    run = folder.name
    assert 4 == len(journal.streams(folder))
    wait_for(lambda: collector.ask(f"/api/v1/runs/{run}")["state"] == "ended", "the run has ended", collector.log)
    item = collector.ask(f"/api/v1/runs/{run}")
    assert ("elastic", 7, 2) == (item["name"], item["last_step"], item["world_size"])
    assert [] == collector.ask(f"/api/v1/runs/{run}/incidents")["items"]
    assert [] == receiver.received

    one_by_one = curves(collector.ask(f"/api/v1/runs/{run}/series?names=grad_norm&axis=life"))
    assert [0, 0, 1, 1] == [item["rank"] for item in one_by_one]
    assert [list(range(8))] * 2 == [item["steps"] for item in one_by_one[1::2]]
    first, second = curves(collector.ask(f"/api/v1/runs/{run}/series?names=grad_norm&merged=true&axis=life"))
    assert (None, list(range(8))) == (second["rank"], second["steps"])
    for item, parts in ((first, one_by_one[0::2]), (second, one_by_one[1::2])):
        assert_whole(item, parts)
    report = diagnose(folder).as_json()
    assert ([], 2, "ended") == (report["findings"], len(report["run"]["lives"]), report["run"]["state"])
    assert "killed" in report["run"]["lives"][0]["goodbye"] or "lost" == report["run"]["lives"][0]["state"]
    assert second["values"][-1] == pytest.approx(report["summary"]["grad_norm"]["last"])


def assert_whole(item: dict[str, Any], parts: list[dict[str, Any]]) -> None:
    """The norm of the whole is made of the shards' at each step that both ranks have."""
    shards = [dict(zip(part["steps"], part["values"], strict=True)) for part in parts]
    steps = sorted(set(shards[0]) & set(shards[1]))
    assert steps
    assert steps == item["steps"]
    expected = [(shards[0][step] ** 2 + shards[1][step] ** 2) ** 0.5 for step in steps]
    assert expected == pytest.approx(item["values"], rel=1e-5)
