"""Two made-up runs side by side, for tests of what compares them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ammeter import verdicts
from ammeter.verdicts.framework.finding import Finding
from ammeter.verdicts.framework.run_comparison import RunComparison
from ammeter.verdicts.framework.run_history import LifeReader, RunHistory
from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import views

CONFIG = {"lr": 0.001, "batch": 8, "seed": 0, "model": {"width": 64}}


def course(
    steps: int = 200,
    precision: str = "float32",
    *,
    config: dict[str, Any] | None = None,
    over: bool = True,
    name: str = "base",
    every: int = 20,
    world_size: int = 1,
    row: Callable[[int], dict[str, float]] = lambda step: {},
) -> RunHistory:
    """A run of steps of 10 ms, validated every so many; row: what is other in a step, by column."""
    stream = Stream()
    if precision != "float32":
        stream.autocast(precision)
    for step in range(steps):
        data = {"loss": 2.0 + 1 / (step + 1), "applied": 1.0, "skipped": 0.0, "step_seconds": 0.01 + step % 7 * 1e-5}
        if (step + 1) % every == 0:
            data["val_loss"] = 3.0 - step / 400
        stream.step(0.1, None, **(data | row(step)))
    reading = LifeReader()
    for view in views(stream.frames):
        reading.add(view)
    settings = CONFIG if config is None else config
    environment = {"torch": "2.13.0", "device": "NVIDIA H200", "host": name}
    return reading.history(over, name, settings, environment, world_size)


def judged(run: RunHistory, baseline: RunHistory, **more: Any) -> dict[str, Finding]:
    """What the verdicts that compare runs conclude."""
    answer = verdicts.judge_runs(RunComparison(run, baseline, **more))
    assert {} == answer.faults
    return {finding.verdict: finding for finding in answer.findings}


def check_words(finding: Finding) -> None:
    for text in (finding.title, finding.cause, finding.fix):
        assert text == " ".join(text.split())
        assert not {"None", "nan", ".."} & set(text.replace(",", " ").split())
    assert finding.cause.endswith(".")
    assert finding.fix.endswith(".")
    assert 0 <= finding.first_step <= finding.opened_step <= finding.last_step
