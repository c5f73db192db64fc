"""run-lost has two wordings: the process died, or nobody is heard of any more."""

from __future__ import annotations

import msgspec
import pytest

from ammeter import verdicts
from ammeter.block import Tick
from ammeter.verdicts.finding import Finding
from ammeter.wire import Hello
from tests.agent.streams import SECOND, Stream, findings, judged, views, warm


def tick(stream: Stream, seconds: float, alive: bool | None, offline: bool = False) -> Tick:
    return Tick(stream.now + int(seconds * SECOND), alive, stream.now, offline)


def found(stream: Stream, looked: Tick | None = None) -> Finding:
    return findings(stream, looked)["run-lost"]


def test_a_bye_with_reason_lost_is_a_process_that_died() -> None:
    finding = found(warm(40).bye("lost"))
    assert ("page", 39, 39) == (finding.severity, finding.first_step, finding.last_step)
    assert "The process of rank 0 (process 4711 on node7) died without a goodbye" in finding.cause
    assert "Its last step was 39." in finding.cause
    assert "dmesg" in finding.fix
    assert "process" == finding.evidence["cause"]


def test_what_is_known_of_the_end_is_said() -> None:
    finding = found(warm(40).bye("lost", "killed by SIGKILL"))
    assert "died without a goodbye: killed by SIGKILL. Its last step was 39." in finding.cause
    assert "killed by SIGKILL" == finding.evidence["how"]
    assert "dmesg" in finding.fix


def test_who_ran_out_of_memory_is_told_what_to_do_about_memory() -> None:
    finding = found(warm(40).bye("lost", "killed by SIGKILL; the kernel's OOM killer did it"))
    assert "the kernel's OOM killer did it" in finding.cause
    assert finding.fix.startswith("Give the job more memory")


def test_silence_that_nobody_can_explain_is_a_lost_host() -> None:
    stream = warm(40)
    finding = found(stream, tick(stream, 15, alive=None))
    assert "Nothing was heard of rank 0 (process 4711 on node7) for 15 s" in finding.cause
    assert "Look whether node7 answers" in finding.fix
    assert "host" == finding.evidence["cause"]


def test_silence_with_a_free_lock_is_a_process_that_died() -> None:
    stream = warm()
    assert "died without a goodbye" in found(stream, tick(stream, 20, alive=False)).cause


@pytest.mark.parametrize(("seconds", "alive"), [(14, None), (14, False), (3600, True)])
def test_it_is_not_lost_yet(seconds: float, alive: bool | None) -> None:
    stream = warm()
    assert {} == findings(stream, tick(stream, seconds, alive))


def test_offline_a_free_lock_says_it_at_once() -> None:
    stream = warm()
    assert "died without a goodbye" in found(stream, tick(stream, 0, alive=False, offline=True)).cause
    assert {} == findings(stream, tick(stream, 10, alive=True, offline=True))
    assert {"run-stalled"} == set(findings(stream, tick(stream, 3600, alive=True, offline=True)))


@pytest.mark.parametrize("reason", ["closed", "exit", "exception", "signal"])
def test_who_said_goodbye_is_not_lost(reason: str) -> None:
    stream = warm().bye(reason)
    assert {} == findings(stream, tick(stream, 3600, alive=None))


def test_a_host_that_comes_back_ends_it() -> None:
    stream = warm()
    states, lost = judged(stream, tick=tick(stream, 60, alive=None))
    assert lost["run-lost"].active
    stream.good(65536)
    (view,) = views(stream.frames[-1:], schema=stream.schema)
    (back,) = verdicts.judge(states, view).findings
    assert not back.active


def test_a_run_that_never_finished_a_step_says_so() -> None:
    finding = found(Stream().bye("lost"))
    assert "Run lost before its first step" == finding.title
    assert 0 == finding.first_step


def test_what_a_shipper_says_of_its_host_may_end_as_it_likes() -> None:
    stream = Stream()
    assert isinstance(stream.frames[0], Hello)
    stream.frames[0] = msgspec.structs.replace(stream.frames[0], role="host")
    assert {} == findings(stream.bye("lost"), tick(stream, 3600, alive=None))
