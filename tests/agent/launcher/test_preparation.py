"""`ammeter run` knows what a program loaded before its first step, from the import of torch on."""

from __future__ import annotations

from typing import Any

import pytest

from ammeter.wire.frames import Event
from tests.agent.launching import launch
from tests.agent.programs import Ended, Program
from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import findings

pytestmark = pytest.mark.long

BUILDS = """
import os, torch
torch.manual_seed(0)
torch.set_num_threads(1)
state = torch.load("../kept/run.pt", weights_only=True) if os.path.exists("../kept/run.pt") else None
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
"""

TRAINS = """
for _ in range(5):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = model(torch.randn(3, 4)).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""

FIRST = (
    """
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
"""
    + TRAINS
    + """
os.makedirs("../kept", mode=0o700)
parts = {"model": model, "scaler": scaler, "optimizer": optimizer}
torch.save({name: part.state_dict() for name, part in parts.items()}, "../kept/run.pt")
"""
)

LOADS_ALL = """
model.load_state_dict(state["model"])
scaler.load_state_dict(state["scaler"])
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
optimizer.load_state_dict(state["optimizer"])
"""

PROGRAMS = {
    "all": LOADS_ALL,
    "no optimizer": LOADS_ALL.replace('optimizer.load_state_dict(state["optimizer"])\n', ""),
    "no scaler": LOADS_ALL.replace('scaler.load_state_dict(state["scaler"])\n', ""),
    "fine-tuning": """
model.load_state_dict(state["model"])
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
""",
}


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """The second processes of a run, by what they load; two run at a time."""
    folder = tmp_path_factory.mktemp("resumed")
    assert 0 == launch(FIRST, folder / "first", begin=BUILDS).end().code
    done: dict[str, Ended] = {}
    waiting: list[tuple[str, Program]] = []
    for name, loads in PROGRAMS.items():
        waiting.append((name, launch(loads + TRAINS, folder / name.replace(" ", "-"), begin=BUILDS)))
        if len(waiting) == 2:
            first, program = waiting.pop(0)
            done[first] = program.end()
    done |= {name: program.end() for name, program in waiting}
    return done


def found(ended: Ended) -> dict[str, Any]:
    stream = Stream()
    stream.frames = ended.stream()
    return findings(stream)


def test_a_lost_optimizer_is_named(resumed: dict[str, Ended]) -> None:
    ended = resumed["no optimizer"]
    assert 0 == ended.code, ended.err
    assert {"resume-mismatch"} == set(found(ended))
    assert "to judge by this: its scaler was restored" in found(ended)["resume-mismatch"].cause


def test_a_lost_scaler_is_named_with_the_line_of_the_load(resumed: dict[str, Ended]) -> None:
    finding = found(resumed["no scaler"])["scaler-not-restored"]
    assert "AdamW was resumed after 5 steps at script.py:" in finding.cause


@pytest.mark.parametrize("name", ["all", "fine-tuning"])
def test_a_whole_resume_and_a_fine_tuning_are_silent(name: str, resumed: dict[str, Ended]) -> None:
    assert {} == found(resumed[name])
    events = [frame.name for frame in resumed[name].stream() if isinstance(frame, Event)]
    assert "checkpoint.restored" in events
    assert (name == "all") is ("optimizer.restored" in events)
