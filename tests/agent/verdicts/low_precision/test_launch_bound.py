"""launch-bound needs an idle device inside the steps, and is silent while they wait for data."""

from __future__ import annotations

import pytest

from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import findings
from tests.agent.streams import broken, healthy

NAME = "launch-bound"
STEP_SECONDS = 0.5
STEPS_PER_READING = 10


def training(busy: float, wait_share: float = 0.05, readings: int = 14, device: str = "cuda") -> Stream:
    """Steps of half a second; each tenth has a reading of the device."""
    stream = Stream().event("autocast.entered", device=device, dtype="bfloat16", grad=True)
    for step in range(readings * STEPS_PER_READING):
        read = {"device_utilization": busy} if step % STEPS_PER_READING == 0 else {}
        times = {"step_seconds": STEP_SECONDS, "wait_seconds": wait_share * STEP_SECONDS}
        stream.good(seconds=STEP_SECONDS, norm=1 + 0.3 * float(stream.dice.random()), **times, **read)
    return stream


@broken
def launch_bound() -> Stream:
    return training(busy=0.2)


@healthy
def a_device_that_is_busy() -> Stream:
    return training(busy=0.9)


@healthy
def a_device_that_waits_for_data() -> Stream:
    return training(busy=0.2, wait_share=0.7)


@healthy
def a_device_whose_steps_are_busy_between_short_waits() -> Stream:
    return training(busy=0.45, wait_share=0.15)


def test_it_has_the_share_of_time_with_a_kernel_and_that_of_waits() -> None:
    finding = findings(launch_bound())[NAME]
    assert ("ticket", 0, 60) == (finding.severity, finding.first_step, finding.opened_step)
    assert "The GPU runs a kernel in 20 % of the time" == finding.title
    assert "In 7 readings of NVML during 30 s of steps up to step 60" in finding.cause
    assert "waited for data and other work between them in 5.0 % of theirs" in finding.cause
    assert "In the rest, at most 21 % had a kernel" in finding.cause
    assert (0.2, 0.05, 7) == tuple(finding.evidence[name] for name in ("device_utilization", "wait_share", "readings"))


@pytest.mark.parametrize(
    "stream",
    [
        training(busy=0.2, readings=6),
        training(busy=0.2, device="cpu"),
        training(busy=float("nan")),
        training(busy=0.48),
        training(busy=0.2, wait_share=0.25),
    ],
    ids=["29 s", "float32 on the device", "unreadable", "half of the steps", "a quarter of waits"],
)
def test_too_little_evidence_is_silent(stream: Stream) -> None:
    assert NAME not in findings(stream)


def test_steps_whose_waits_are_unknown_do_not_count() -> None:
    stream = Stream().event("autocast.entered", device="cuda", dtype="float16", grad=True)
    for _ in range(40):
        stream.good(seconds=5.0, step_seconds=5.0, device_utilization=0.1)
    assert NAME not in findings(stream)


def test_a_device_that_becomes_busy_closes_it() -> None:
    stream = training(busy=0.2)
    for step in range(80):
        read = {"device_utilization": 0.95} if step % STEPS_PER_READING == 0 else {}
        stream.good(seconds=0.5, step_seconds=0.5, wait_seconds=0.01, **read)
    finding = findings(stream)[NAME]
    assert not finding.active
    assert "20 % of the time" in finding.title
