"""Every verdict that a guard accepts is one that it acts on; every other one is refused before the run begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

import ammeter
from ammeter import guards
from ammeter.guards.verdict_names import UNUSABLE, USABLE, USABLE_WITH_BASELINE
from ammeter.verdicts import ALL
from ammeter.wire.frames import Event, Frame, Steps
from tests.agent import all_streams  # noqa: F401 - registers its streams
from tests.agent.guarded import train
from tests.agent.streams import BROKEN

BASELINE = {"seed": 1, "lr": 0.01}


def test_each_verdict_is_accepted_or_refused() -> None:
    assert {verdict.id for verdict in ALL} == {*USABLE, *USABLE_WITH_BASELINE, *UNUSABLE}


def as_of_now(frames: Sequence[Frame]) -> list[Frame]:
    """The same frames, written in the hours to come: what the run has written itself lies before them."""
    now = time.time_ns()
    return [replace(frame, time=frame.time + now) if isinstance(frame, Steps | Event) else frame for frame in frames]


@pytest.mark.parametrize("verdict", USABLE)
def test_a_verdict_of_one_process_that_is_accepted_stops_the_run(verdict: str, tmp_path: Path) -> None:
    """The run is real, with the journal of a broken one heard in it."""
    guard = guards.Stop([verdict])

    def before(step: int, *_: Any) -> None:
        if step == 4:
            guard.receive_frames(as_of_now(BROKEN[verdict]().frames))

    scaler = verdict != "no-loss-scaling"
    outcome = train(
        tmp_path, [guard], before=before, with_scaler=scaler, dtype=torch.float16 if scaler else torch.bfloat16
    )
    assert isinstance(outcome.raised, ammeter.Stopped)
    assert verdict == outcome.raised.verdict
    assert len(outcome.losses) <= 5


@pytest.mark.parametrize("verdict", UNUSABLE)
@pytest.mark.parametrize("make", [guards.Stop, lambda ids: guards.OnIncident(print, ids)], ids=["Stop", "OnIncident"])
def test_a_verdict_that_no_guard_can_act_on_is_refused_by_name(verdict: str, make: Callable[[list[str]], Any]) -> None:
    with pytest.raises(
        ValueError, match=f"no guard can act on '{verdict}': .*use of these: .*nonfinite-weights"
    ) as told:
        make(["nonfinite-weights", verdict])
    assert "validation-drift" in str(told.value)


@pytest.mark.parametrize("verdict", USABLE_WITH_BASELINE)
def test_a_verdict_that_compares_runs_is_refused_where_no_baseline_is_at_hand(verdict: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"Stop acts on '{verdict}', which compares the run with a baseline") as raised:
        train(tmp_path, [guards.Stop([verdict])])
    assert "watch(..., tags={'baseline': ...})" in str(raised.value)
    several: list[dict[str, Any]] = [{"tags": {"baseline": "nobody"}}, {"config": {"baseline": "nobody"}}]
    for named in several:
        with pytest.raises(ValueError, match=r"the journal of the baseline cannot be read: .*no baseline 'nobody'"):
            train(tmp_path, [guards.Stop([verdict])], **named)
    with pytest.raises(ValueError, match="OnIncident acts on"):
        train(tmp_path, [guards.OnIncident(print, [verdict])], tags={"baseline": "nobody"})


def program(
    folder: Path,
    name: str,
    *,
    half: bool = True,
    drift: float = 0.0,
    pause: float = 0.0,
    spoil: int = -1,
    **options: Any,
) -> Exception | None:
    """Eighty steps of a small network, with a validation at each fifth. drift: by how much those from step 15 on are
    worse. pause: seconds that each step takes longer. spoil: the step at which a weight is changed."""
    torch.manual_seed(1)
    first = torch.nn.Linear(6, 8)
    net = torch.nn.Sequential(first, torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    run = ammeter.watch(net, optimizer, dir=folder, name=name, **{"config": BASELINE, **options})
    try:
        for step in range(80):
            optimizer.zero_grad()
            if step == spoil:
                with torch.no_grad():
                    first.bias[0] += 0.5
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = net(torch.randn(4, 6)).float().square().mean()
            torch.autograd.backward(loss)
            optimizer.step()
            if step and step % 5 == 0:
                run.log(val_loss=2.0 * (1 + (drift if step >= 15 else 0.0)))
            time.sleep(pause)
    except ammeter.Stopped as stopped:
        return stopped
    finally:
        run.close()
    return None


def beside(folder: Path, verdict: str, **more: Any) -> ammeter.Stopped:
    """How a run in bfloat16 ends that is held against its float32 baseline."""
    program(folder, "fp32", half=False)
    guarding = [guards.Checkpoint(every_steps=4), guards.Stop([verdict])]
    stopped = program(folder, "bf16", guards=guarding, tags={"baseline": "fp32"}, **more)
    assert isinstance(stopped, ammeter.Stopped)
    assert verdict == stopped.verdict
    return stopped


def test_drift_from_the_baseline_stops_a_real_run_and_names_the_checkpoint_from_before(tmp_path: Path) -> None:
    error = beside(tmp_path, "validation-drift", drift=0.5)
    assert 15 == error.finding.first_step
    assert 25 <= error.step  # after three validations; the journal is read by the clock, so some steps later
    assert error.checkpoint is not None
    assert error.checkpoint.endswith("step-00000012.pt")
    assert "Go back to" in str(error)


def test_other_settings_than_the_baseline_stop_a_real_run(tmp_path: Path) -> None:
    beside(tmp_path, "not-comparable", config={**BASELINE, "lr": 0.02})


def test_a_run_slower_than_its_baseline_is_stopped(tmp_path: Path) -> None:
    beside(tmp_path, "slower-than-fp32", pause=0.06)


def test_a_run_that_parts_from_its_twin_is_stopped(tmp_path: Path) -> None:
    program(tmp_path, "twin")
    stop = guards.Stop(["not-reproducible"], baseline="twin")
    stopped = program(tmp_path, "again", guards=[stop], spoil=12)
    assert isinstance(stopped, ammeter.Stopped)
    assert ("not-reproducible", 12) == (stopped.verdict, stopped.finding.first_step)


def test_a_run_within_its_limit_goes_on_to_the_last_bit(tmp_path: Path) -> None:
    bare = train(None, steps=40)
    train(tmp_path, name="twin", config=BASELINE, steps=40)
    stop = guards.Stop(["validation-drift", "not-reproducible"], baseline="twin")
    watched = train(tmp_path, [stop], steps=40, name="again", config=BASELINE)
    assert watched.raised is None
    assert bare.state == watched.state


def test_the_baseline_may_be_a_path(tmp_path: Path) -> None:
    twin = train(tmp_path / "there", name="twin", config=BASELINE)
    stop = guards.Stop(["validation-drift"], baseline=tmp_path / "there" / twin.run)
    stopped = program(tmp_path / "here", "other", guards=[stop])
    assert stopped is None
