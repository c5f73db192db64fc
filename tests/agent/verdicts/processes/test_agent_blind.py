"""agent-blind fires for a probe that failed and for records that are gone, not for a few rows."""

from __future__ import annotations

from ammeter.wire.frames import Lost
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings


def lost(stream: Stream, reason: str, steps: int = 0, events: int = 0) -> Stream:
    stream.frames.append(Lost(reason, steps, events))
    return stream


def test_a_probe_that_failed_is_named_with_its_error() -> None:
    stream = warm(7).event("probe.failed", probe="origin", error="KeyError: 'x'")
    finding = findings(stream)["agent-blind"]
    assert ("ticket", 6, 6) == (finding.severity, finding.first_step, finding.opened_step)
    assert "Ammeter stopped recording the origin of NaN and Inf" == finding.title
    assert (
        'The part of Ammeter named "origin", which records the origin of NaN and Inf, failed and is switched off for'
        " this run (KeyError: 'x')." in finding.cause
    )
    assert "Report the error to the maintainers" in finding.fix


def test_a_few_rows_of_many_may_be_gone() -> None:
    assert {} == findings(lost(warm(50), "device-late", steps=10))
    assert {"agent-blind"} == set(findings(lost(warm(50), "device-late", steps=11)))
    assert {} == findings(lost(warm(2000), "device-late", steps=20))


def test_an_event_that_is_gone_is_told_in_any_case() -> None:
    finding = findings(lost(warm(7), "journal-cap", steps=900, events=1))["agent-blind"]
    assert "900 steps and 1 event are missing because the journal folder reached its size limit." in finding.cause
    assert "ammeter doctor" in finding.fix


def test_each_reason_is_said_in_words_and_one_that_is_not_known_by_its_name() -> None:
    torn = findings(lost(warm(7), "torn", events=1))["agent-blind"]
    assert "1 event is missing because a crash interrupted a write" in torn.cause
    unknown = findings(lost(warm(7), "gremlins", events=2))["agent-blind"]
    assert "2 events are missing (reason: gremlins)." in unknown.cause


def test_losses_add_up_and_each_reason_has_its_remedy() -> None:
    stream = lost(
        lost(lost(warm(7), "journal-unwritable", steps=6), "rejected", steps=3), "journal-unwritable", steps=6
    )
    finding = findings(stream)["agent-blind"]
    assert {"journal-unwritable": [12, 0], "rejected": [3, 0]} == finding.evidence["lost"]
    assert "Set AMMETER_DIR to a folder that has free space" in finding.fix
    assert "shipper.log lists the rejected records" in finding.fix


def test_many_reasons_and_long_words_of_a_hostile_stream_stay_bounded() -> None:
    stream = warm(7)
    for at in range(100):
        lost(stream, f"{at}" * 1000, events=1)
        stream.event("probe.failed", probe=f"{at}" * 1000, error="x" * 10_000)
    assert 20_000 > len(findings(stream)["agent-blind"].cause)
