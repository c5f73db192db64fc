"""What holds for every verdict: no cut of a stream matters, healthy runs are silent, quiet rows cost nearly nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ammeter import verdicts
from ammeter.verdicts.causality import explain
from ammeter.verdicts.framework.finding import Finding, Verdict, no_op
from ammeter.wire.columns import Floats, View
from tests.agent import all_streams, stream_builder, stream_judgement, streams, streams_values  # noqa: F401 - registers streams
from tests.agent.stream_builder import warm
from tests.agent.stream_judgement import judged, views
from tests.agent.streams import BROKEN, HEALTHY

EVERY = {**HEALTHY, **BROKEN, "clip by hand": streams.clip_by_hand}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_is_silent(name: str) -> None:
    assert {} == stream_judgement.findings(HEALTHY[name]())


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_run_has_one_finding_which_is_its_cause(name: str) -> None:
    found = explain([("stream", finding) for finding in stream_judgement.findings(BROKEN[name]()).values()])
    assert [name] == [cause.finding.verdict for cause in found]


@pytest.mark.parametrize("verdict", verdicts.STREAM_VERDICTS, ids=lambda verdict: verdict.id)
def test_every_verdict_has_a_stream_that_breaks_it(verdict: Verdict) -> None:
    assert verdict.id in BROKEN


@pytest.mark.parametrize("verdict", verdicts.STREAM_VERDICTS, ids=lambda verdict: verdict.id)
def test_a_verdict_reads_the_columns_that_it_names_and_no_others(
    verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: set[str] = set()

    def noting(ask: Callable[[View, str], Floats]) -> Callable[[View, str], Floats]:
        def asked(view: View, name: str) -> Floats:
            read.add(name)
            return ask(view, name)

        return asked

    monkeypatch.setattr(View, "scalar", noting(View.scalar))
    monkeypatch.setattr(View, "stat", noting(View.stat))
    for make in EVERY.values():
        state = verdict.state()
        for view in stream_judgement.whole(make):
            state, _ = verdict.judge(state, replace(view))  # a copy: a View reads the columns of its loss once
    assert set(verdict.columns) == (read if verdict.ranks is no_op else set(verdict.columns) | read)


@pytest.mark.parametrize("name", EVERY)
def test_a_stream_cut_at_every_frame_is_judged_as_in_one_piece(name: str) -> None:
    stream = EVERY[name]()
    stream.frames = stream.frames[:400]
    assert judged(stream) == judged(stream, cuts=range(len(stream.frames)))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_cut_changes_what_is_concluded(data: st.DataObject) -> None:
    stream = data.draw(st.builds(lambda name: EVERY[name](), st.sampled_from(sorted(EVERY))))
    stream.frames = stream.frames[:500]
    cuts = data.draw(st.sets(st.integers(0, len(stream.frames)), max_size=12))
    assert judged(stream) == judged(stream, cuts=cuts)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_cut_changes_what_is_concluded_from_chaos(data: st.DataObject) -> None:
    stream = data.draw(chaos())
    cuts = data.draw(st.sets(st.integers(0, len(stream.frames)), max_size=8))
    whole, pieces = judged(stream), judged(stream, cuts=cuts)
    assert whole[1] == pieces[1]
    for verdict in verdicts.STREAM_VERDICTS:
        states = (msgspec.msgpack.decode(outcome[0][verdict.id], type=verdict.state) for outcome in (whole, pieces))
        assert repr(next(states)) == repr(next(states))


@pytest.mark.parametrize("name", EVERY)
def test_the_states_of_all_verdicts_stay_below_4_kilobytes(name: str) -> None:
    states, _ = judged(EVERY[name]())
    assert sum(map(len, states.values())) < 4096


@pytest.mark.parametrize("name", EVERY)
def test_a_finding_is_told_again_only_when_it_changed(name: str) -> None:
    stream = EVERY[name]()
    states: dict[str, bytes] = {}
    told: dict[str, Finding] = {}
    for view in views(stream.frames, cuts=range(0, len(stream.frames), 3)):
        answer = verdicts.judge(states, view)
        states = answer.states
        for finding in answer.findings:
            assert told.get(finding.verdict) != finding
            told[finding.verdict] = finding


@pytest.mark.parametrize("name", BROKEN)
def test_a_finding_is_plain_data_and_its_words_hold_no_leftovers(name: str) -> None:
    for finding in stream_judgement.findings(BROKEN[name]()).values():
        assert finding == msgspec.json.decode(msgspec.json.encode(finding), type=Finding)
        for text in (finding.title, finding.cause, finding.fix):
            assert text == " ".join(text.split())
            assert not {"None", "nan", "  ", ".."} & set(text.replace(",", " ").split())
        assert finding.cause.endswith(".")
        assert finding.fix.endswith(".")
        assert 0 <= finding.first_step <= finding.opened_step
        assert finding.title


def test_a_thousand_quiet_rows_cost_all_verdicts_little() -> None:
    (view,) = views(warm(1000).frames)
    states = verdicts.judge({}, view).states
    assert 4 > cost(view, states)


def test_one_quiet_row_costs_all_verdicts_little() -> None:
    stream = warm(50)
    *_, view = views(stream.frames, cuts=[len(stream.frames) - 1])
    states, _ = judged(stream)
    assert 1.5 > cost(view, states)


def cost(view: View, states: dict[str, bytes]) -> float:
    """The time of all verdicts as a multiple of a loop over 10,000 numbers, 0.2 to 0.4 ms, on the same machine."""
    return best_time(lambda: verdicts.judge(states, view)) / best_time(lambda: sum(n * n for n in range(10_000)))


def best_time(call: Callable[[], object]) -> float:
    times = []
    for _ in range(50):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


TOLD = ("loss_not_scaled", "gradients_not_unscaled", "mixed_scale", "gradients_not_reset", "lopsided_step")
VALUES: dict[str, Callable[[stream_builder.Stream, float], stream_builder.Stream]] = {
    "poisoned": lambda stream, norm: streams_values.poisoned(stream, "embed.weight"),
    "saved": lambda stream, norm: streams_values.saved(stream, f"/runs/{norm}.pt"),
    "reading": lambda stream, norm: streams_values.reading(stream, 0.9 if norm > 0.1 else 0.2, copy=False),
    "finite": lambda stream, norm: stream.good(weights_nonfinite=norm > 1),
    "census": lambda stream, norm: streams_values.census(stream, {"bfloat16": 9}, masters=norm > 1),
    "born": lambda stream, norm: streams_values.born(stream, module="a.b", op="SoftmaxBackward0", nans=3),
    "peaks": lambda stream, norm: stream.event("activation.peaks", modules=[{"absmax": 6e4, "share": 0.9}]),
}
"""What is told and read of the numbers themselves, as it comes with a norm of 1e-6 to 300."""


@st.composite
def chaos(draw: st.DrawFn) -> stream_builder.Stream:
    """Steps of every kind in any order, at scales that jump as they like."""
    tensors = draw(st.sampled_from((stream_builder.TENSORS, streams_values.HALF)))
    stream = stream_builder.Stream(tensors, world_size=draw(st.sampled_from((1, 2))))
    kinds = st.sampled_from(
        ("good", "full", "under", "skip", "nan", "inf", "loss", "bare", "half", "clip", "hand", *TOLD, *VALUES)
    )
    scales = st.sampled_from((None, 2.0**-130, 0.5, 1.0, 1024.0, 2048.0, 65536.0))
    for kind, scale, times in draw(st.lists(st.tuples(kinds, scales, st.integers(1, 25)), max_size=14)):
        for _ in range(times):
            chaotic_step(stream, kind, scale, draw)
    return stream


def chaotic_step(stream: stream_builder.Stream, kind: str, scale: float | None, draw: st.DrawFn) -> None:
    norm = float(draw(st.sampled_from((1e-6, 0.1, 1.0, 300.0))))
    if kind == "half":
        stream.autocast()
    elif kind in VALUES:
        VALUES[kind](stream, norm)
    elif kind == "clip":
        stream.event("usage.clip_before_unscale", caller="a.py:1", max_norm=norm, scale=scale or 1.0)
    elif kind in TOLD:
        counted = {"times": 2 ** draw(st.integers(0, 4)), "left": norm, "scaled_too": norm > 1, "first_step": 0}
        stream.event(f"usage.{kind}", caller="a.py:1", optimizer="SGD", scale=scale, **counted)
        stream.good(scale)
    elif kind == "hand":
        parts = [draw(st.sampled_from((0.3, 0.4, 0.5)))] * 6
        stream.good(scale, norm=min(1e30, 1 / (scale or 1)), stats={"grad.norm": parts})
    elif kind == "bare":
        stream.step(loss=1.0)
    elif kind in ("good", "full", "under"):
        stats = stream.readings(zeros=0.5, subnormals=0.4) if kind == "under" else {}
        stream.good(scale, norm=norm, full=kind != "good", stats=stats)
    else:
        last = draw(st.integers(0, 5))
        loss = float("nan") if kind == "loss" else 1.0
        stream.bad(scale, first=draw(st.integers(0, last)), last=last, inf=kind == "inf", loss=loss)
