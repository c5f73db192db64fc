"""Streams in which a text is easily false."""

from __future__ import annotations

import math
from collections.abc import Callable

from ammeter.wire.columns import ABSENT
from tests.agent.stream_builder import Stream, warm
from tests.agent.streams_values import born, poisoned


def skips(stream: Stream, count: int, scale: float = 65536.0, **more: object) -> Stream:
    for halvings in range(count):
        stream.bad(scale / 2**halvings, **more)  # type: ignore[arg-type]
    return stream


def goods(stream: Stream, count: int, scale: float, **more: float) -> Stream:
    for _ in range(count):
        stream.good(scale, **more)
    return stream


def an_overflow_that_stops_when_the_scale_backs_off() -> Stream:
    return goods(skips(warm(), 6, last=2, inf=True), 30, 1024.0)


def a_scale_that_falls_to_1_and_works_there() -> Stream:
    return goods(skips(warm(), 16, last=2, inf=True), 30, 1.0)


def a_fresh_scaler_that_works_at_last_below_1() -> Stream:
    return goods(skips(Stream().autocast(), 18, last=2, inf=True), 30, 0.25)


def a_held_scale_that_works_again() -> Stream:
    stream = warm()
    for _ in range(7):
        stream.bad(65536.0, first=3, last=3, inf=True)
    return goods(stream, 30, 65536.0)


def nan_targets_for_six_batches() -> Stream:
    return goods(skips(warm(), 6, last=5, loss=math.nan), 30, 1024.0)


def one_sample_that_overflows_at_a_scale_of_2_to_the_13() -> Stream:
    stream = Stream().autocast()
    for _ in range(60):
        stream.good(8192.0, norm=10 * 2.0**-6, full=True)
    return goods(stream.bad(8192.0, last=3, inf=True), 60, 4096.0)


def nan_alone_that_works_at_the_next_scale() -> Stream:
    stream = goods(Stream().autocast(), 40, 65536.0, norm=0.5, full=True)
    return goods(stream.bad(65536.0, last=3), 60, 32768.0)


def one_optimizer_that_steps_while_the_other_is_skipped() -> Stream:
    stream = warm().bad(65536.0, last=5, loss=math.nan, applied=1).bad(32768.0, last=5, loss=math.nan, applied=1)
    for halvings in range(2, 9):
        stream.bad(2.0 ** (16 - halvings), last=2, applied=1)
    return stream


def an_infinite_loss_with_finite_gradients() -> Stream:
    return goods(warm().good(65536.0, loss=math.inf), 30, 65536.0)


def weights_that_were_not_read() -> Stream:
    stream = warm(scale=None).bad(last=5, loss=math.nan).bad(last=3)
    for _ in range(20):
        stream.bad(last=5, loss=math.nan)
    return stream.good(2.0**-130)


def nan_gradients_whose_loss_was_not_read() -> Stream:
    stream = warm(scale=None)
    for _ in range(3):
        stream.bad(last=3, loss=float(ABSENT))
    return stream


def a_step_of_which_nobody_knows_whether_it_was_made() -> Stream:
    absent = float(ABSENT)
    return warm(scale=None).bad(last=3, applied=absent, skipped=absent)


def a_nan_loss_that_no_step_followed() -> Stream:
    stream = warm().bad(65536.0, last=5, loss=math.nan)
    for halvings in range(1, 15):
        stream.bad(2.0 ** (16 - halvings), last=2, inf=True)
    return stream


def a_frontier_of_gradients_below_a_nan_loss() -> Stream:
    stream = warm().bad(65536.0, last=3, loss=math.nan).bad(32768.0, last=3)
    told = {"kind": "backward", "module": "blocks.1.fc", "tensor": "blocks.1.fc.weight", "confidence": "frontier"}
    return stream.event("origin.found", **told, since=1, nans=9, infs=0)


def a_poisoned_buffer_with_clean_weights() -> Stream:
    stream = warm().bad(65536.0, last=5, loss=math.nan).bad(32768.0, last=5, loss=math.nan)
    told = {"kind": "weights", "module": "norm", "tensor": "norm.running_mean", "buffer": True}
    return born(stream, **told, op="NativeBatchNormBackward0", nans=4, since=1)


def a_target_that_was_not_finite() -> Stream:
    stream = warm().bad(65536.0, last=5, loss=math.nan).bad(32768.0, last=5, loss=math.nan)
    return born(stream, module="", op="loss", absmax=3.2, since=1)


def an_attention_of_the_program_that_overflows_before_its_softmax() -> Stream:
    stream = warm().bad(65536.0, last=5, loss=math.nan).bad(32768.0, last=5, loss=math.nan)
    return born(stream, module="attend", op="SoftmaxBackward0", nans=9, absmax=300.0, since=1, **{"class": "Attend"})


def everything_twice() -> Stream:
    stream = an_overflow_that_stops_when_the_scale_backs_off()
    for _ in range(2):
        goods(stream, 220, 1024.0)
        goods(skips(stream, 6, 1024.0, last=2, inf=True), 30, 16.0)
        goods(stream.bad(16.0, last=5, loss=math.nan), 60, 1024.0)
        goods(stream.bad(1024.0, last=3), 60, 1024.0)
        for _ in range(20):
            goods(stream.bad(4096.0, last=3, inf=True), 4, 2048.0)
        goods(stream.good(2.0**-129), 30, 1024.0)
    return stream


def weights_that_are_nan_before_a_loss_shows_it() -> Stream:
    stream = poisoned(warm(), "embed.weight", last_finite=None)
    return skips(stream, 12, last=5, loss=math.nan)


ADVERSARIAL: dict[str, Callable[[], Stream]] = {
    make.__name__.replace("_", " "): make
    for make in (
        an_overflow_that_stops_when_the_scale_backs_off,
        a_scale_that_falls_to_1_and_works_there,
        a_fresh_scaler_that_works_at_last_below_1,
        a_held_scale_that_works_again,
        nan_targets_for_six_batches,
        one_sample_that_overflows_at_a_scale_of_2_to_the_13,
        nan_alone_that_works_at_the_next_scale,
        one_optimizer_that_steps_while_the_other_is_skipped,
        an_infinite_loss_with_finite_gradients,
        weights_that_were_not_read,
        nan_gradients_whose_loss_was_not_read,
        a_step_of_which_nobody_knows_whether_it_was_made,
        a_nan_loss_that_no_step_followed,
        a_frontier_of_gradients_below_a_nan_loss,
        a_poisoned_buffer_with_clean_weights,
        a_target_that_was_not_finite,
        an_attention_of_the_program_that_overflows_before_its_softmax,
        everything_twice,
        weights_that_are_nan_before_a_loss_shows_it,
    )
}
