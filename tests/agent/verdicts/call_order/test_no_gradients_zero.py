"""no-gradients fires where all gradients are zero, and leaves those that underflow to another verdict."""

from __future__ import annotations

from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.verdicts.call_order.test_no_gradients import NAME


def test_gradients_that_are_all_zero_are_found_after_twenty_readings() -> None:
    stream = Stream()
    for _ in range(19):
        stream.good(norm=0.0)
    assert NAME not in findings(stream)
    finding = findings(stream.good(norm=0.0))[NAME]
    assert (0, 19, "ticket") == (finding.first_step, finding.opened_step, finding.severity)
    assert "Every gradient that was read since step 0 is exactly zero, in 20 readings" in finding.cause
    assert "the factor that makes the gradients zero" in finding.fix


def test_zeros_after_a_gradient_and_zeros_in_float16_are_another_verdicts() -> None:
    for stream in (Stream().good(norm=0.1), warm(1), Stream().autocast()):
        for _ in range(40):
            stream.good(norm=0.0)
        assert NAME not in findings(stream)


def test_zeros_in_float16_at_a_usual_loss_scale_are_no_underflow_of_all_gradients() -> None:
    for scale, found in ((65536.0, True), (1.0, False)):
        stream = Stream().autocast()
        for _ in range(20):
            stream.good(scale, norm=0.0)
        assert found == (NAME in findings(stream))
