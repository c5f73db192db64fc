"""gradient-underflow needs float16, gradients on its grid, and losses that are not structural zeros."""

from __future__ import annotations

from typing import Any

import pytest

from ammeter.verdicts.framework.finding import Finding
from ammeter.wire.frames import Tensor
from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import findings, judged


def run(
    readings: int = 6, scale: float | None = 1.0, norm: float = 1e-3, dtype: str = "float16", **lost: Any
) -> Stream:
    stream = Stream().autocast(dtype)
    for _ in range(readings):
        stream.good(scale, norm=norm, full=True, stats=stream.readings(**({"zeros": 0.6, "subnormals": 0.35} | lost)))
        stream.good(scale, norm=norm)
    return stream


def found(stream: Stream) -> Finding:
    return findings(stream)["gradient-underflow"]


def test_the_third_reading_in_a_row_opens_it() -> None:
    assert {} == findings(run(readings=2))
    finding = found(run(readings=3))
    assert ("ticket", 0, 4) == (finding.severity, finding.first_step, finding.opened_step)


def test_its_words_give_the_share_the_scale_and_a_better_one() -> None:
    finding = found(run())
    assert "underflow in float16 at a loss scale of 1 (2^0): 95 % of their elements are below 2^-14" in finding.cause
    assert "60 % are zero" in finding.cause
    assert finding.title == "A loss scale of 1 (2^0) is too low: 95 % of the gradient underflows"
    assert "The loss scale was 1 (2^0) in all steps so far." in finding.cause
    assert "GradScaler(init_scale=2.0**26, growth_interval=2000)" in finding.fix
    assert 2.0**26 == finding.evidence["suggested_scale"]
    assert "embed.weight" == finding.tensor


def test_a_better_scale_below_one_keeps_its_digits() -> None:
    assert "GradScaler(init_scale=2.0**-1, growth_interval=2000)" in found(run(scale=2.0**-13, norm=14.0 * 2**13)).fix


def test_when_the_headroom_is_used_up_it_advises_bfloat16() -> None:
    finding = found(run(scale=65536.0, norm=8.0))
    assert "leaves 0.3 bits below 65504, too few for a higher scale" in finding.fix
    assert "bfloat16" in finding.fix
    assert finding.evidence["suggested_scale"] is None


def test_gradients_that_are_zero_throughout_are_lost_too() -> None:
    finding = found(run(zeros=1.0, subnormals=0.0, grid=float("nan"), norm=0.0))
    assert "100 % are zero" in finding.cause
    assert "GradScaler(init_scale=2.0**16, growth_interval=2000)" in finding.fix


def test_where_no_gradient_is_left_at_a_usual_scale_it_asks_for_no_higher_one() -> None:
    finding = found(run(scale=65536.0, zeros=1.0, subnormals=0.0, grid=float("nan"), norm=0.0))
    assert "no gradient is left at this scale" in finding.fix
    assert finding.evidence["suggested_scale"] is None


@pytest.mark.parametrize(
    ("why", "case"),
    {
        "structural zeros": {"zeros": 0.97, "subnormals": 0.001},
        "few subnormals": {"zeros": 0.05, "subnormals": 0.2},
        "off the grid": {"grid": 0.2},
        "not in float16": {"dtype": "bfloat16"},
    }.items(),
)
def test_it_stays_silent(why: str, case: dict[str, Any]) -> None:
    assert {} == findings(run(**case)), why


def test_a_loss_that_is_zero_or_not_finite_explains_zero_gradients() -> None:
    stream = Stream().autocast()
    for _ in range(9):
        stream.good(65536, norm=0, full=True, loss=0, stats=stream.readings(zeros=1.0, grid=float("nan")))
    assert {} == findings(stream)


@pytest.mark.parametrize(("loss", "told"), [(0.0019, False), (0.0021, True)])
def test_once_all_but_a_thousandth_of_the_loss_is_learnt_gradients_may_vanish(loss: float, told: bool) -> None:
    stream = Stream().autocast().good(4096)
    for _ in range(9):
        stream.good(4096, norm=1e-6, full=True, loss=loss, stats=stream.readings(zeros=0.6, subnormals=0.35))
    assert told == ("gradient-underflow" in findings(stream))


def test_a_loss_that_falls_by_five_orders_in_one_step_has_another_weight() -> None:
    """Its gradients shrink although nothing was learnt, and a smaller loss after that is judged by the new level."""
    stream = Stream().autocast().good(4096).good(4096, loss=2e-5)
    for _ in range(9):
        stream.good(4096, norm=1e-6, full=True, loss=1e-5, stats=stream.readings(zeros=0.6, subnormals=0.35))
    assert "gradient-underflow" in findings(stream)
    for step in range(9):
        loss = 1e-5 * 0.2**step
        stream.good(4096, norm=1e-6, full=True, loss=loss, stats=stream.readings(zeros=0.0, subnormals=0.0))
    assert not findings(stream)["gradient-underflow"].active


def test_three_clean_readings_end_it() -> None:
    stream = run()
    for _ in range(2):
        stream.good(65536, full=True)
    assert found(stream).active
    assert not found(stream.good(65536, full=True)).active


@pytest.mark.parametrize(
    ("scale", "loss", "underflows"),
    [(65536.0, 2.0, False), (65536.0, 0.021, False), (131072.0, 2.0, False), (1.0, 2.0, True), (65536.0, 0.019, True)],
)
def test_normal_gradients_that_become_zero_at_once_underflow_only_if_scale_or_loss_has_fallen(
    scale: float, loss: float, underflows: bool
) -> None:
    stream = Stream().autocast()
    for _ in range(5):
        stream.good(65536.0, full=True).good(65536.0)
    for _ in range(5):
        stream.good(scale, norm=0.0, loss=loss, full=True, stats=stream.readings(zeros=1.0, grid=float("nan")))
    assert underflows == ("gradient-underflow" in findings(stream))
    assert findings(stream) == judged(stream, cuts=range(len(stream.frames)))[1]


def test_gradients_that_shrink_until_all_are_zero_underflow() -> None:
    stream = Stream().autocast().good(1.0, full=True)
    stream.good(1.0, norm=1e-4, full=True, stats=stream.readings(zeros=0.1, subnormals=0.8))
    for _ in range(2):
        stream.good(1.0, norm=0.0, full=True, stats=stream.readings(zeros=1.0, grid=float("nan")))
    assert 3 == found(stream).opened_step


@pytest.mark.parametrize(
    ("ranks", "grid", "underflows"),
    [(1, 0.5, False), (2, 0.41, True), (2, 0.3, False), (3, 0.33, True), (4, 0.2, True), (8, 0.12, True)]
    + [(ranks, 0.06, False) for ranks in (2, 8, 64, 1024)],
)
def test_an_average_over_ranks_leaves_one_of_so_many_elements_on_the_grid(
    ranks: int, grid: float, underflows: bool
) -> None:
    stream = Stream(world_size=ranks).autocast()
    for _ in range(6):
        stream.good(65536, full=True, stats=stream.readings(zeros=0.05, subnormals=0.8, grid=grid)).good(65536)
    assert underflows == ("gradient-underflow" in findings(stream))
    assert judged(stream) == judged(stream, cuts=range(len(stream.frames)))


def test_the_text_says_that_the_gradients_are_an_average() -> None:
    stream = Stream(world_size=2).autocast()
    for _ in range(6):
        stream.good(65536, full=True, stats=stream.readings(zeros=0.05, subnormals=0.8, grid=0.5)).good(65536)
    finding = findings(stream)["gradient-underflow"]
    assert "% of the elements of their average over 2 ranks are below 2^-14" in finding.cause
    assert {"averaged_lost_share", "averaged_zero_share"} == {key for key in finding.evidence if "share" in key}


@pytest.mark.parametrize(("lost", "underflows"), [(0.45, False), (0.55, True)])
def test_of_an_average_half_of_all_elements_have_to_be_lost(lost: float, underflows: bool) -> None:
    """A third would be enough for the gradients of one rank; elements of two may cancel."""
    size = round(10_000 * lost)
    tensors = (Tensor("small.weight", (size,), "float32"), Tensor("usual.weight", (10_000 - size,), "float32"))
    for ranks, grid, expected in ((1, 0.95, True), (2, 0.5, underflows)):
        stream = Stream(tensors, world_size=ranks).autocast()
        stats = stream.readings(zeros=0.0) | {"grad.subnormals": [size, 0], "grad.fp16_grid": [grid, 0.0]}
        for _ in range(6):
            stream.good(65536, full=True, stats=stats).good(65536)
        assert expected == ("gradient-underflow" in findings(stream))


def test_healthy_gradients_of_ranks_are_silent_on_the_grid() -> None:
    stream = Stream(world_size=2).autocast()
    for _ in range(9):
        stream.good(65536, full=True, stats=stream.readings(zeros=0.3, subnormals=0.3, grid=0.5))
    assert {} == findings(stream)
