"""scale-collapse fires after a handful of skips at scales that had worked, and never while a scaler calibrates."""

from __future__ import annotations

import pytest

from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings, judged
from tests.agent.streams_values import poisoned


def collapse(stream: Stream, skips: int, scale: float = 65536.0) -> Stream:
    for halvings in range(skips):
        stream.bad(scale / 2**halvings, first=3, last=3, inf=True)
    return stream


def found(stream: Stream) -> Finding:
    return findings(stream)["scale-collapse"]


def test_the_fifth_skip_in_a_row_pages() -> None:
    finding = found(collapse(warm(40), 5))
    assert ("page", 40, 44, 44, True) == (
        finding.severity,
        finding.first_step,
        finding.opened_step,
        finding.last_step,
        finding.active,
    )
    assert "blocks.1.fc.weight" == finding.tensor
    assert "blocks.1.fc" == finding.module
    assert 65536 == finding.evidence["scale_from"]
    assert 4096 == finding.evidence["scale_to"]
    assert 5 == finding.evidence["skipped_steps"]


@pytest.mark.parametrize(("skips", "when"), [(5, "After 139 more skipped steps"), (145, "Now")])
def test_the_words_on_a_scaler_of_the_program_do_not_mention_grad_scaler(skips: int, when: str) -> None:
    finding = found(collapse(warm().event("scaler.seen", own=True, enabled=True, scale=65536.0), skips))
    assert f"{when} 1/scale is infinite in float32, and gradients multiplied by it become NaN." in finding.cause
    assert "GradScaler" not in finding.cause + finding.fix


def test_it_says_how_many_steps_are_left_until_the_inverse_of_the_scale_is_infinite() -> None:
    assert 139 == found(collapse(warm(), 5)).evidence["steps_left"]
    assert "In 139 more skipped steps 1/scale becomes infinite" in found(collapse(warm(), 5)).cause
    assert 0 == found(collapse(warm(), 145)).evidence["steps_left"]
    assert "1/scale is infinite now" in found(collapse(warm(), 145)).cause


def test_its_words_name_the_scales_the_place_and_what_to_do() -> None:
    finding = found(collapse(warm(), 5))
    assert "from 65536 (2^16) to 4096 (2^12)" in finding.cause
    assert "The gradient of blocks.1.fc.weight is non-finite; 5 others are finite." in finding.cause
    assert "fix blocks.1.fc" in finding.fix
    assert (
        "Check whether steps are applied again before the scale has fallen to 1: then it was an overflow."
        in finding.fix
    )
    hopeless = found(collapse(warm(), 17))
    assert "The gradient of blocks.1.fc.weight contains NaN or Inf, and no lower loss scale helps" == hopeless.title
    assert "gradients were non-finite at a scale of 1 and below, so a lower one does not help" in hopeless.cause
    assert "a hook on it, or an overflow in its sum over the batch" in hopeless.fix
    assert "An overflow is still possible: no step has failed at a scale of 1 or less." in finding.cause


def test_a_scale_that_the_program_holds_is_not_said_to_fall() -> None:
    stream = warm()
    for _ in range(6):
        stream.bad(65536, first=3, last=3, inf=True)
    finding = found(stream)
    assert "Every step is skipped at a loss scale of 65536" == finding.title
    assert "while the loss scale stayed 65536 (2^16). Before, this scale had worked." in finding.cause
    assert "1/scale" not in finding.cause


def test_four_skips_in_a_row_are_not_yet_a_collapse() -> None:
    assert "scale-collapse" not in findings(collapse(warm(), 4))


def test_skips_with_good_steps_between_them_are_no_collapse() -> None:
    stream = warm()
    for halvings in range(12):
        collapse(stream, 3, 65536 / 8**halvings).good(65536 / 8 ** (halvings + 1))
    assert "scale-collapse" not in findings(stream)


def test_a_growth_does_not_count_towards_the_handful() -> None:
    stream = warm(300, scale=1024.0)
    assert "scale-collapse" not in findings(collapse(stream, 5, 2048.0))
    assert "scale-collapse" in findings(collapse(warm(300, scale=1024.0), 6, 2048.0))


def test_a_scale_reset_far_up_may_come_down_again() -> None:
    stream = collapse(warm(300, scale=1024.0), 6)
    for _ in range(50):
        stream.good(1024)
    assert {} == findings(stream)


def test_a_scale_set_too_high_by_hand_comes_down_to_what_worked_however_long_that_takes() -> None:
    stream = collapse(warm(scale=65536.0), 28, 2.0**40)
    assert "scale-collapse" not in findings(stream.good(4096.0))
    finding = found(collapse(warm(scale=65536.0), 29, 2.0**40))
    assert 65536 * 2**24 == finding.evidence["scale_from"]
    assert "Before, 65536 (2^16) had worked." in finding.cause
    assert "Before, the first of these scales had worked." in found(collapse(warm(scale=65536.0), 5)).cause


def test_a_fresh_scaler_may_halve_until_it_reaches_1_and_no_further() -> None:
    assert "scale-collapse" not in findings(collapse(Stream().autocast(), 16))
    finding = found(collapse(Stream().autocast(), 17))
    assert (0, 16) == (finding.first_step, finding.opened_step)
    assert "No step was applied before." in found(collapse(Stream().autocast(), 26, 2.0**40)).cause


def test_a_fresh_scaler_is_not_waited_for_more_than_24_halvings() -> None:
    assert 24 == found(collapse(Stream().autocast(), 30, 2.0**60)).opened_step


def test_ten_good_steps_end_it_and_a_second_one_is_told_as_such() -> None:
    stream = collapse(warm(), 6)
    for _ in range(10):
        stream.good(1024)
    assert not found(stream).active
    again = found(collapse(stream, 5, 1024.0))
    assert (True, 2, 56) == (again.active, again.times, again.first_step)


def test_where_the_rows_have_no_norms_per_tensor_the_event_names_the_place() -> None:
    stream = warm()
    for halvings in range(5):
        stream.step(loss=2, applied=0, skipped=1, scale=65536 / 2**halvings)
        tensors = [{"tensor": "a.weight", "nans": 1, "infs": 0}]
        stream.event("gradient.nonfinite", tensors=tensors, count=1, last="a.weight", finite_after=2, finite=3)
    assert "a.weight" == found(stream).tensor


def test_where_the_weights_are_nan_themselves_it_does_not_call_them_unharmed() -> None:
    finding = found(poisoned(collapse(warm(40), 6), "blocks.1.fc.weight"))
    assert "the weights contain NaN or Inf themselves" in finding.fix
    assert "The weights contain NaN or Inf, read at step" in finding.cause
    assert "An overflow is still possible" not in finding.cause
    assert "changed no weight" not in finding.fix


def test_a_loss_that_rises_as_the_gradients_do_excuses_as_many_skips_as_it_has_doublings() -> None:
    def rising(loss: float, skips: int) -> Stream:
        stream = warm(60)
        for halvings in range(skips):
            stream.bad(65536 / 2.0**halvings, last=2, loss=loss)
        return stream.good(65536 / 2.0**skips, loss=loss)

    assert "scale-collapse" not in findings(rising(400.0, skips=7))
    assert "page" == findings(rising(2.0, skips=7))["scale-collapse"].severity
    assert "page" == findings(rising(400.0, skips=16))["scale-collapse"].severity


def test_a_scale_that_the_program_raises_between_skips_has_not_collapsed() -> None:
    stream = warm(40)
    for step in range(20):
        stream.bad(65536 * 4.0 ** (step // 2) / 2 ** (step % 2), last=3)
    assert "scale-collapse" not in findings(stream)


def with_steps_between(held: bool, applied_at_last: bool) -> Stream:
    """Six skips in a row, then three more with seven applied steps before each."""
    stream, scale = warm(40, scale=8.0), 8.0
    for at in range(9):
        for _ in range(7 if at > 5 else 0):
            stream.good(scale)
        stream.bad(scale, first=3, last=3)
        scale = scale if held else scale / 2
    return stream.good(scale) if applied_at_last else stream


@pytest.mark.parametrize("applied_at_last", [True, False])
@pytest.mark.parametrize("held", [True, False])
def test_steps_that_were_applied_during_a_collapse_are_told(held: bool, applied_at_last: bool) -> None:
    finding = found(with_steps_between(held, applied_at_last))
    assert "The scaler skipped 9 steps from 40 to 69" in finding.cause
    assert "From step 46 on 21 steps between them were applied" in finding.cause
    assert "any scale" not in finding.cause
    assert "Do not lower" not in finding.fix
    assert applied_at_last == ("Since step 70 steps are applied again." in finding.cause)
    assert (46, 21) == (finding.evidence["applied_again_at_step"], finding.evidence["steps_applied_between"])
    assert (8.0 if held else 0.125) == finding.evidence["applied_again_at_scale"]
    collapsed = "Loss scale collapsed from 8 to 0.0312"
    assert finding.title == ("9 of 30 steps were skipped at a loss scale of 8" if held else collapsed)


def test_a_collapse_that_the_program_interrupts_by_a_higher_scale_names_the_lowest_one() -> None:
    stream = collapse(warm(40), 6).good(1024.0).bad(65536.0, first=3, last=3)
    assert "Loss scale collapsed from 65536 to 2050" == found(stream).title
    assert "so the loss scale fell from 65536 (2^16) to 2048 (2^11)" in found(stream).cause


def test_a_later_skip_does_not_change_a_collapse_that_is_over() -> None:
    stream = collapse(warm(), 6)
    for _ in range(10):
        stream.good(1024.0)
    over = found(stream)
    assert "Steps are applied again since step 46" in over.cause
    stream.bad(1024.0, first=1, last=1)
    assert over == found(stream)
    assert over == judged(stream, cuts=range(len(stream.frames)))[1]["scale-collapse"]


def test_of_several_scalers_the_smallest_scale_is_not_said_to_be_that_of_the_skipped_steps() -> None:
    stream = collapse(warm(40, scale=256.0).event("scaler.seen", enabled=True, scale=16384.0, scaler=1), 12, 256.0)
    finding = found(stream)
    assert "12 steps were skipped in a run with several scalers" == finding.title
    assert "while the smallest scale of the run's scalers fell from 256 (2^8) to 0.125 (2^-3)" in finding.cause
    for claim in ("had worked", "any scale", "1/scale"):
        assert claim not in finding.cause
    assert "Do not lower" not in finding.fix
