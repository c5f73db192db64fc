"""run-stalled compares the time without a step with the run's own pauses; a validation or a goodbye is no stall."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from ammeter import verdicts
from ammeter.verdicts.causality import explain
from ammeter.verdicts.framework.finding import Finding
from ammeter.wire.columns import Tick, view
from ammeter.wire.frames import Bye, Hello
from tests.agent.stream_builder import SECOND, Stream, warm
from tests.agent.stream_judgement import findings, judged, views
from tests.agent.training import stream as journal_of
from tests.agent.training import watching

MINUTE = 60.0


def looked(stream: Stream, *seconds: float, alive: bool | None = True, skew: float = 0.0) -> dict[str, Finding]:
    """What is concluded when the clock, `skew` seconds ahead of the run's, looks so long after its end."""
    states, found = judged(stream)
    for second in seconds:
        now = stream.now + int((second + skew) * SECOND)
        answer = verdicts.judge(states, view(stream.schema, (), tick=Tick(now, alive, now)))
        assert {} == answer.faults
        states = answer.states
        found |= {finding.verdict: finding for finding in answer.findings}
    return found


def offline(stream: Stream, seconds: float, alive: bool = True) -> dict[str, Finding]:
    return findings(stream, Tick(stream.now + int(seconds * SECOND), alive, stream.now, offline=True))


def test_a_quarter_of_an_hour_without_a_step_is_told_with_the_process() -> None:
    finding = looked(warm(40), 60, 60 + 15 * MINUTE)["run-stalled"]
    assert ("ticket", 39, 39) == (finding.severity, finding.first_step, finding.opened_step)
    assert "No step for 15 min after step 39" == finding.title
    assert "Rank 0 (process 4711 on node7) completed no step for 15 min after step 39" in finding.cause
    assert "its longest pause before was 0.1 s" in finding.cause
    assert "`py-spy dump --pid 4711` on node7: its stack shows the line that waits" in finding.fix
    assert "init_process_group" not in finding.fix


@pytest.mark.parametrize("minutes", [1, 5, 14])
def test_it_is_not_stalled_yet(minutes: int) -> None:
    assert {} == looked(warm(40), 60, 60 + minutes * MINUTE)


def test_after_an_hour_a_person_is_woken() -> None:
    times = [60.0 + 5 * second for second in range(3700 // 5)]
    assert "page" == looked(warm(40), *times)["run-stalled"].severity


def test_a_run_that_pauses_for_minutes_may_pause_for_an_hour() -> None:
    stream = warm(40).good(65536, seconds=10 * MINUTE)
    for _ in range(5):
        stream.good(65536)
    assert {} == looked(stream, 60, 60 + 90 * MINUTE)
    assert "run-stalled" in looked(stream, 60, 60 + 110 * MINUTE)


def test_a_run_that_has_made_no_steps_may_still_load_or_compile() -> None:
    assert {} == looked(Stream(), 60, 60 + 300 * MINUTE)
    assert {} == looked(warm(4), 60, 60 + 300 * MINUTE)


@pytest.mark.parametrize("skew", [-86400.0, 86400.0])
def test_a_clock_that_is_wrong_by_a_day_changes_nothing(skew: float) -> None:
    assert {} == looked(warm(40), 60, 10 * MINUTE, skew=skew)
    assert "run-stalled" in looked(warm(40), 60, 60 + 16 * MINUTE, skew=skew)


@pytest.mark.parametrize("alive", [None, False])
def test_of_a_process_that_is_gone_run_lost_speaks(alive: bool | None) -> None:
    assert "run-stalled" not in looked(warm(40), 60, 60 + 20 * MINUTE, alive=alive)


def test_a_step_ends_it() -> None:
    stream = warm(40)
    states, _ = judged(stream)
    for seconds in (60, 60 + 16 * MINUTE):
        now = stream.now + int(seconds * SECOND)
        states = verdicts.judge(states, view(stream.schema, (), tick=Tick(now, True, now))).states
    stream.good(65536, seconds=17 * MINUTE)
    (rows,) = views(stream.frames[-1:], schema=stream.schema)
    (back,) = verdicts.judge(states, rows).findings
    assert ("run-stalled", False) == (back.verdict, back.active)


def test_offline_a_held_lock_is_a_process_that_stands() -> None:
    assert {} == offline(warm(40), 14 * MINUTE)
    assert "ticket" == offline(warm(40), 16 * MINUTE)["run-stalled"].severity
    assert "page" == offline(warm(40), 61 * MINUTE)["run-stalled"].severity


def test_a_notebook_that_waits_for_a_person_is_not_stalled() -> None:
    stream = warm(40)
    stream.frames[0] = msgspec.structs.replace(stream.frames[0], environment={"interactive": "yes"})
    assert {} == offline(stream, 600 * MINUTE)
    assert {} == looked(stream, 60, 600 * MINUTE)


def ended(reason: str, message: str, minutes: float) -> Stream:
    stream = warm(40)
    stream.now += int(minutes * MINUTE * SECOND)
    return stream.bye(reason, message)


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("exception", "KeyboardInterrupt"),
        ("exception", "torch.distributed.DistBackendError: [Rank 0] Watchdog caught collective operation timeout"),
        ("lost", "killed by SIGKILL"),
    ],
)
def test_one_that_was_ended_after_a_long_wait_stood_still(reason: str, message: str) -> None:
    assert "run-stalled" not in findings(ended(reason, message, minutes=10))
    found = findings(ended(reason, message, minutes=40))
    (cause,) = explain([("stream", finding) for finding in found.values()])
    assert "run-stalled" == cause.finding.verdict
    assert f"Then the process ended: {message[:80]}." in cause.finding.cause
    assert "faulthandler.dump_traceback_later(900, repeat=True)" in cause.finding.fix


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("closed", ""),
        ("exit", ""),
        ("signal", "SIGTERM"),
        ("exception", "OSError: no space left on device"),
        ("lost", ""),
    ],
)
def test_what_happens_long_after_the_last_step_is_no_stall_by_itself(reason: str, message: str) -> None:
    assert "run-stalled" not in findings(ended(reason, message, minutes=400))


def test_the_shipper_of_a_host_has_no_steps_to_make() -> None:
    stream = warm(40)
    assert isinstance(stream.frames[0], Hello)
    stream.frames[0] = msgspec.structs.replace(stream.frames[0], role="host")
    assert {} == looked(stream, 60, 200 * MINUTE)


def test_a_program_that_waits_for_data_that_does_not_come_is_told(tmp_path: Path) -> None:
    model = torch.nn.GRUCell(3, 5)
    optimizer = torch.optim.Adamax(model.parameters())
    with watching(tmp_path, model, optimizer) as seen:
        for _ in range(12):
            optimizer.zero_grad()
            model(torch.randn(2, 3)).square().mean().backward()
            optimizer.step()
    stream = Stream()
    stream.frames = [frame for frame in journal_of(seen.run, tmp_path)[1] if not isinstance(frame, Bye)]
    stream.now = max(getattr(frame, "time", 0) for frame in stream.frames)
    assert {} == offline(stream, 5 * MINUTE)
    finding = offline(stream, 70 * MINUTE)["run-stalled"]
    assert ("page", 11) == (finding.severity, finding.first_step)


def test_a_step_that_completed_without_its_row_is_the_last_one() -> None:
    stream = warm(40)
    states, _ = judged(stream)
    for second in (60.0, 60 + 15 * MINUTE):
        now = stream.now + int(second * SECOND)
        tick = Tick(now, True, now, False, 57, stream.now + SECOND)
        answer = verdicts.judge(states, view(stream.schema, (), tick=tick))
        states = answer.states
    (finding,) = [finding for finding in answer.findings if finding.verdict == "run-stalled"]
    assert "No step for 15 min after step 57" == finding.title
    assert (57, 57) == (finding.opened_step, finding.evidence["last_step"])
