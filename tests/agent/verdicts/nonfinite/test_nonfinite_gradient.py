"""nonfinite-gradient tells gradients that are broken from those that only overflowed a scale too high."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ammeter.verdicts.framework.finding import Finding
from ammeter.wire.columns import ABSENT
from ammeter.wire.frames import Hello
from tests.agent import streams
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings


def found(stream: Stream) -> Finding:
    return findings(stream)["nonfinite-gradient"]


def with_room(bits: int, steps: int = 60) -> Stream:
    """A run whose largest gradient, scaled by 4096, leaves so many bits below 65504."""
    stream = Stream().autocast()
    for _ in range(steps):
        stream.good(4096, norm=10 * 2.0 ** (4 - bits) * 0.99, full=True)
    return stream


def calm() -> Stream:
    """A run at the usual scale that leaves more room than an overflow needs that shows as NaN alone."""
    stream = Stream().autocast()
    for _ in range(40):
        stream.good(65536, norm=0.5, full=True)
    return stream


def test_nan_without_inf_at_a_scale_that_left_room_is_found_at_once_with_its_place() -> None:
    finding = found(calm().bad(65536, last=3))
    assert ("ticket", 40, 40) == (finding.severity, finding.first_step, finding.opened_step)
    assert "blocks.1.fc.weight" == finding.tensor
    assert "blocks.1.fc" == finding.module
    assert "the 2 gradients read after it are finite. That points to the backward pass of blocks.1.fc." in finding.cause
    assert "An overflow is unlikely, because the scale of" in finding.cause
    assert "run the same batch with GradScaler(init_scale=1) to decide" in finding.cause
    assert "GradScaler skipped that step, so no weight was changed." in finding.cause
    assert "backward pass of blocks.1.fc" in finding.fix


def test_finite_gradients_before_the_bad_ones_point_to_no_backward_pass() -> None:
    """The modules then do not run in the order in which they are defined."""
    finding = found(calm().bad(65536, first=1, last=3))
    assert "the 2 gradients read after it are finite." in finding.cause
    assert "points to" not in finding.cause


def test_two_such_steps_in_a_row_page() -> None:
    assert "page" == found(calm().bad(65536, last=3).bad(32768, last=3)).severity


def test_three_such_steps_within_ten_page_and_further_apart_they_do_not() -> None:
    def every(steps: int) -> Stream:
        stream = calm()
        for halvings in range(3):
            stream.bad(65536 / 2**halvings, last=3)
            for _ in range(steps - 1):
                stream.good(32768 / 2**halvings, norm=0.5)
        return stream

    assert "page" == found(every(4)).severity
    assert "ticket" == found(every(12)).severity


def test_without_a_scaler_one_applied_step_pages() -> None:
    finding = found(warm(scale=None).bad(last=3))
    assert "page" == finding.severity
    assert (
        "1 such step was applied without a GradScaler that would have skipped it; no reading has found NaN"
        in finding.cause
    )


def test_without_a_scaler_a_step_that_the_program_left_out_is_a_ticket() -> None:
    finding = found(warm(scale=None).bad(last=3, applied=0))
    assert "ticket" == finding.severity
    assert "The optimizer did not step, so no weight was changed." in finding.cause


def test_gradients_that_are_all_nan_with_a_finite_loss_have_no_tensor() -> None:
    finding = found(calm().bad(65536, last=5))
    assert finding.tensor is None
    assert "All 6 gradients that were read are non-finite" in finding.cause


def test_an_inf_with_room_enough_is_found_when_the_run_recovers() -> None:
    stream = with_room(bits=8).bad(4096, last=2, inf=True)
    assert {} == findings(stream)
    finding = found(stream.good(2048))
    assert ("ticket", 60, 61, 60) == (finding.severity, finding.first_step, finding.opened_step, finding.last_step)
    assert "usual gradients left 8 bits of headroom there (a factor of 256)" in finding.cause


@pytest.mark.parametrize("bits", [0, 2, 5])
def test_an_inf_without_room_is_an_ordinary_overflow(bits: int) -> None:
    assert {} == findings(with_room(bits).bad(4096, last=2, inf=True).good(2048))


def test_a_scale_that_had_not_worked_yet_is_to_blame_whatever_the_room() -> None:
    assert {} == findings(with_room(bits=12).bad(8192, last=2, inf=True).good(4096))
    assert {} == findings(with_room(bits=12).bad(8192, last=2).good(4096))


def test_a_run_whose_overflows_have_much_room_teaches_what_room_is_worth() -> None:
    stream = with_room(bits=8)
    stream.bad(8192, last=2, inf=True)
    for _ in range(50):
        stream.good(4096, norm=10 / 16, full=True)
    assert {} == findings(stream.bad(4096, last=2, inf=True).good(2048))


def test_a_run_whose_overflows_are_nan_needs_room_for_nan_too() -> None:
    stream = with_room(bits=2).bad(8192, last=3).good(4096, norm=20)
    assert {} == findings(stream.bad(4096, last=3).good(2048))


@pytest.mark.parametrize(("bits", "told"), [(0, False), (2, False), (4, True)])
def test_nan_alone_needs_some_room_where_the_scale_was_too_high_before(bits: int, told: bool) -> None:
    """As behind the softmax of an attention pooling, whose overflow reaches no weight but as NaN."""
    stream = with_room(bits).bad(2.0**20, last=2, inf=True)
    for _ in range(60):
        stream.good(4096, norm=10 * 2.0 ** (4 - bits) * 0.99, full=True)
    assert told == ("nonfinite-gradient" in findings(stream.bad(4096, last=3).good(2048)))


def test_nan_alone_needs_some_room_where_the_scale_has_grown() -> None:
    stream = with_room(bits=3)
    for _ in range(20):
        stream.good(8192, norm=10 * 2.0 * 0.99, full=True)
    assert {} == findings(stream.bad(8192, last=3).good(4096))


@pytest.mark.parametrize(("bits", "told"), [(0, False), (2, False), (4, True)])
def test_nan_alone_needs_some_room_at_the_scale_that_a_run_began_with(bits: int, told: bool) -> None:
    """It may have worked for a few small batches."""
    assert told == ("nonfinite-gradient" in findings(with_room(bits, steps=5).bad(4096, last=3).good(2048)))


def test_nan_alone_needs_some_room_where_a_scale_that_had_worked_was_too_high_once() -> None:
    stream = with_room(bits=0).bad(4096, last=2, inf=True)
    for _ in range(60):
        stream.good(2048, norm=10 * 2.0**5 * 0.99, full=True)
    assert {} == findings(stream.bad(2048, last=3).good(1024))


def test_nan_alone_says_nothing_of_gradients_of_which_only_those_of_one_optimizer_are_there() -> None:
    stream = with_room(bits=4).event(
        "usage.update_between_optimizers", caller="train.py:1", optimizer="SGD", first_step=0
    )
    found = findings(stream.bad(4096, last=3).good(2048))
    assert ["update-between-optimizers"] == list(found)


def test_nan_alone_that_stays_is_told_when_the_scale_has_left_it_room() -> None:
    stream = with_room(bits=0).bad(8192, last=2, inf=True)
    for _ in range(60):
        stream.good(4096, norm=10 * 2.0**4 * 0.99, full=True)
    for halvings in range(4):
        assert {} == findings(stream.bad(4096 / 2**halvings, last=3))
    finding = found(stream.bad(256, last=3))
    assert (121, 125) == (finding.first_step, finding.opened_step)
    assert "the scale of 4096 (2^12) had worked and none of the gradients is Inf" in finding.cause


def test_gradients_that_wait_for_the_second_optimizer_are_not_those_of_the_applied_step() -> None:
    stream = calm().event("usage.update_between_optimizers", caller="train.py:1", optimizer="SGD", first_step=0)
    found = findings(stream.bad(1024, last=3, applied=1, skipped=0).good(256, norm=0.5))
    assert ["update-between-optimizers"] == list(found)
    assert "nonfinite-gradient" in findings(calm().bad(1024, last=3, applied=1, skipped=0).good(512, norm=0.5))


def test_where_the_scale_has_no_inverse_nan_everywhere_is_the_scales_own() -> None:
    stream = calm()
    for halvings in range(150):
        scale = 65536 / 2**halvings
        first = 3 if scale > 2.0**-128 else 0
        stream.bad(scale, first=first, last=3 if first else 5, inf=bool(first))
    assert "nonfinite-gradient" not in findings(stream)


def test_a_single_broken_tensor_that_stays_broken_is_left_to_scale_collapse() -> None:
    stream = warm()
    for halvings in range(20):
        stream.bad(65536 / 2**halvings, first=3, last=3)
    assert {"scale-collapse"} == set(findings(stream))


def test_a_single_broken_tensor_that_comes_and_goes_is_found() -> None:
    stream = calm()
    for _ in range(3):
        stream.bad(65536, first=3, last=3).good(65536, norm=0.5).good(65536, norm=0.5)
    assert "page" == found(stream).severity
    assert "blocks.1.fc.weight" == found(stream).tensor


def test_an_inf_that_is_handed_on_and_stays_is_the_cause_of_the_collapse() -> None:
    stream = warm()
    for halvings in range(4):
        stream.bad(65536 / 2**halvings, last=2, inf=True)
    assert {} == findings(stream)
    finding = found(stream.bad(4096, last=2, inf=True))
    assert ("page", 40, 44) == (finding.severity, finding.first_step, finding.opened_step)
    assert "In 5 steps from 40 to 44" in finding.cause
    assert "the scale of 65536 (2^16) had worked" in finding.cause  # and not 4096, at which no step was applied


def test_nan_from_the_first_step_on_is_found_when_the_scale_has_come_down_to_1() -> None:
    stream = Stream().autocast()
    for halvings in range(17):
        stream.bad(65536 / 2**halvings, last=3)
    assert (0, 16) == (found(stream).first_step, found(stream).opened_step)


def test_a_large_finite_norm_that_overflows_float32_is_not_broken() -> None:
    assert {} == findings(warm(scale=None).good(norm=float("inf"), grad_nonfinite=0))


def test_fifty_good_steps_end_it() -> None:
    stream = calm().bad(65536, last=3)
    for _ in range(49):
        stream.good(32768)
    assert found(stream).active
    assert not found(stream.good(32768)).active


def test_a_program_without_a_loss_scale_that_skips_five_steps_in_a_row_is_found() -> None:
    stream = Stream().autocast("bfloat16")
    for _ in range(20):
        stream.good(None, norm=0.5)
    for count in range(1, 6):
        stream.bad(None, last=3, applied=0, skipped=1)
        assert ("nonfinite-gradient" in findings(stream)) is (count == 5)
    assert "The optimizer did not step, so no weight was changed." in found(stream).cause


def test_the_count_covers_all_bad_steps_of_the_span_that_is_named() -> None:
    stream = with_room(bits=8).bad(4096, last=2, inf=True).bad(2048, last=2, inf=True).good(1024)
    finding = found(stream)
    assert "In 2 steps from 60 to 61 the gradients contained NaN or Inf" in finding.cause
    assert (60, 62, 61) == (finding.first_step, finding.opened_step, finding.last_step)


def test_an_overflow_between_two_bad_steps_counts_as_one_of_them() -> None:
    stream = calm().bad(65536, last=3).good(32768, norm=0.5).bad(2.0**24, last=2, inf=True).good(32768, norm=0.5)
    finding = found(stream.bad(32768, last=3))
    assert "In 3 steps from 40 to 44 the gradients contained NaN or Inf" in finding.cause
    assert 3 == finding.evidence["bad_steps"]


@pytest.mark.parametrize("reported_by", ["one batch", "many batches"])
def test_the_first_step_of_a_further_optimizer_shows_no_scale_that_has_worked_for_it(reported_by: str) -> None:
    stream = calm() if reported_by == "one batch" else calm().good(65536, norm=0.5)
    assert "nonfinite-gradient" not in findings(stream.bad(65536, last=3, applied=1, skipped=1).good(32768, applied=2))
    later = stream.good(32768, norm=0.5, applied=2).bad(32768, last=3, applied=1, skipped=1).good(16384, applied=2)
    assert "nonfinite-gradient" in findings(later)


def test_a_larger_loss_leaves_less_headroom_than_the_usual_one() -> None:
    def after(loss: float) -> Stream:
        stream = Stream().autocast()
        for _ in range(60):
            stream.good(4096, norm=10 * 2.0**-4, full=True, loss=0.5)
        return stream.bad(4096, last=3, inf=True, loss=loss).good(2048, loss=loss)

    assert "nonfinite-gradient" in findings(after(0.5))
    assert "nonfinite-gradient" not in findings(after(0.5 * 2.0**6))


def test_of_several_scalers_no_scale_is_said_to_have_worked() -> None:
    stream = calm().event("scaler.seen", enabled=True, scale=16384.0, scaler=1)
    cause = found(stream.bad(64, first=3, last=3, inf=True).good(64, norm=0.5)).cause
    assert "had worked" not in cause
    assert "An overflow is possible" in cause


def test_the_scale_of_a_run_with_other_ranks_is_that_of_this_rank() -> None:
    stream = streams.nonfinite_gradient()
    assert "not an overflow of the loss scale" in found(stream).cause
    hello = stream.frames[0]
    assert isinstance(hello, Hello)
    stream.frames[0] = replace(hello, world_size=2)
    assert "not an overflow of this rank's loss scale" in found(stream).cause


def test_gradients_that_were_finite_before_their_reduction_point_to_what_follows_it() -> None:
    stream = calm().bad(65536, last=3, local_nonfinite=0.0)
    finding = found(stream)
    assert "At step 40 the gradients of this rank were finite before their reduction" in finding.cause
    assert "That points to the backward pass" not in finding.cause
    assert "a buffer that is used again before the result of its reduction is copied back" in finding.fix
    assert 40 == finding.evidence["finite_before_reduction"]
    for local in (2.0, float(ABSENT)):
        assert "finite_before_reduction" not in found(calm().bad(65536, last=3, local_nonfinite=local)).evidence
