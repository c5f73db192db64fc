"""overflow-storm fires on a sawtooth, and neither on a healthy growth nor on a scale that only falls."""

from __future__ import annotations

from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings, judged


def sawtooth(good: int, times: int, stream: Stream | None = None) -> Stream:
    stream = stream or warm(30, scale=8192.0)
    for _ in range(times):
        stream.bad(16384, last=2, inf=True)
        for step in range(good):
            stream.good(8192, norm=20, growth_tracker=step, full=step == 0)
    return stream


def found(stream: Stream) -> Finding:
    return findings(stream)["overflow-storm"]


def test_the_eighth_skip_within_200_steps_opens_it() -> None:
    assert "overflow-storm" not in findings(sawtooth(good=5, times=7))
    finding = found(sawtooth(good=5, times=8))
    assert ("ticket", 30, 72) == (finding.severity, finding.first_step, finding.opened_step)


def test_it_gives_the_scale_that_the_gradients_bear_and_how_the_scaler_is_set() -> None:
    finding = found(sawtooth(good=5, times=12))
    assert "12 of 72 steps were skipped since step 30, at scales of up to" in finding.cause
    assert "The loss scale grows 2-fold after every 5 applied steps" in finding.cause
    assert "At 8192 (2^13) none of 60 steps were skipped, so the gradients tolerate about that scale." in finding.cause
    assert "GradScaler(init_scale=2.0**13, growth_interval=2000), which tries a higher scale" in finding.fix
    assert "becomes 16400; float16 ends at 65504" in finding.fix
    assert 5 == finding.evidence["growth_interval"]
    assert 8192 == finding.evidence["bearable_scale"]


def test_a_growth_factor_that_is_too_large_is_put_right_too() -> None:
    stream = warm(30, scale=8192.0)
    for _ in range(10):
        stream.bad(32768, last=2, inf=True).bad(16384, last=1, inf=True).good(8192, growth_tracker=0)
    assert "The loss scale grows 4-fold after every applied step" in found(stream).cause
    assert "growth_factor=2.0" in found(stream).fix


def test_a_rise_that_the_program_makes_is_a_power_of_two() -> None:
    stream = warm(30, scale=2.0**-123)
    for _ in range(10):
        stream.bad(65536, last=2, inf=True).good(2.0**-123).good(2.0**-123)
    finding = found(stream)
    assert "The loss scale rises by a factor of up to 2^139 in one step, too high for the gradients" in finding.cause
    assert "e+" not in finding.cause
    assert finding.fix.startswith("If the program sets the scale with scaler.update(new_scale=...), remove that call.")


def test_a_fixed_scale_that_is_too_high_is_a_storm() -> None:
    stream = warm(30)
    for _ in range(12):
        stream.bad(65536, last=2, inf=True).good(65536).good(65536)
    assert "12 of" in found(stream).cause
    assert "The loss scale does not fall after a skipped step" in found(stream).cause
    assert "At each scale that was tried more than one step in ten was skipped." in found(stream).cause


def test_a_scale_that_has_fallen_to_zero_does_not_stay_up() -> None:
    stream = warm(30)
    for halvings in range(200):
        stream.bad(65536 / 2**halvings if halvings < 166 else 0.0, last=2, inf=halvings < 144)
    assert "overflow-storm" not in findings(stream)


def test_one_skip_in_every_30_steps_is_not_yet_a_storm() -> None:
    assert {} == findings(sawtooth(good=29, times=12))


def test_a_scale_that_only_falls_is_no_storm() -> None:
    stream = warm()
    for halvings in range(16):
        stream.bad(65536 / 2**halvings, last=2, inf=True).good(65536 / 2 ** (halvings + 1), norm=1e-3)
    assert "overflow-storm" not in findings(stream)


def test_the_calibration_of_a_fresh_scaler_does_not_count() -> None:
    stream = Stream().autocast()
    for halvings in range(14):
        stream.bad(2.0 ** (27 - halvings), last=2, inf=True)
        if halvings % 3 == 2:
            stream.good(2.0 ** (26 - halvings))
    for _ in range(60):
        stream.good(8192)
    assert {} == findings(stream)


def test_200_steps_without_a_skip_end_it() -> None:
    stream = sawtooth(good=5, times=12)
    for _ in range(200):
        stream.good(8192)
    assert not found(stream).active
    assert "12 of" in found(stream).cause


def test_skips_with_room_for_the_gradients_are_not_called_an_overflow() -> None:
    stream = warm(30, scale=64.0)
    for _ in range(12):
        stream.bad(128, first=2, last=2)
        for step in range(4):
            stream.good(64, norm=2, growth_tracker=step, full=step == 0)
    finding = found(stream)
    assert finding.cause.startswith("The loss scale grows 2-fold after every 4 applied steps: 12 of 60 steps were")
    assert "At 12 of these skips the scale left the largest gradient that was read at least 6 bits" in finding.cause
    assert "tolerate" not in finding.cause
    assert finding.fix.startswith("Repeat the batch of a skipped step, such as step 85, with GradScaler(init_scale=1).")
    assert "If they are finite, use GradScaler(init_scale=2.0**6" in finding.fix
    assert (12, 0) == (
        finding.evidence["skips_with_headroom"],
        found(sawtooth(good=5, times=12)).evidence["skips_with_headroom"],
    )


def test_a_programs_own_scale_shows_no_room_because_it_may_clip_its_gradients_first() -> None:
    stream = warm(30, scale=64.0)
    for _ in range(12):
        stream.bad(128, last=2, inf=True).good(64, norm=2, full=True).good(64, norm=2)
    assert "too high for the gradients, which then overflow" in found(stream).cause


def test_steps_at_more_scales_than_are_counted_apart_are_in_the_total() -> None:
    stream = warm(30, scale=64.0)
    for at in range(20):
        stream.bad(2.0 ** (7 + at), last=2, inf=True).good(2.0 ** (6 + at)).good(2.0 ** (6 + at)).good(2.0 ** (7 + at))
    finding = found(stream)
    assert "20 of 80 steps were skipped since step 30, at scales of up to 67108864 (2^26)" in finding.cause
    assert (20, 60) == (finding.evidence["steps_skipped"], finding.evidence["steps_applied"])
    assert finding == judged(stream, cuts=range(len(stream.frames)))[1]["overflow-storm"]
