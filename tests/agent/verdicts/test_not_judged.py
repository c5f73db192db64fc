from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ammeter import verdicts
from ammeter.counters.readings import CENSUS, COLUMNS
from ammeter.counters.stream import advance
from ammeter.verdicts import ALL, STREAM_VERDICTS
from ammeter.verdicts.framework.readings import NOUNS, Readings, RunFacts
from ammeter.verdicts.not_judged import VERDICTS, NotJudged, not_judged, sentences
from ammeter.wire.frames import IMPORTED
from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import views

FULL = {
    "scale": 5000,
    "grad_norm": 5000,
    "grad_absmax": 100,
    "grad_agreement": 100,
    "update_ratio": 100,
    "lost_updates": 100,
    "weights_nonfinite": 100,
    CENSUS: 10,
    "half_tensors": 0,
    "float16_tensors": 0,
}


def _counters(steps: int = 5000, **changes: Any) -> dict[str, Any]:
    return {"steps": steps, "applied": steps, "readings": {**FULL, **changes}}


def _open(counters: dict[str, Any], precision: str | None = "float16") -> dict[str, NotJudged]:
    return {entry.verdict: entry for entry in not_judged([(counters, precision)])}


def test_a_run_that_was_read_often_is_judged() -> None:
    assert {} == _open(_counters())


def test_a_short_run_names_its_length_as_the_reason() -> None:
    (entry,) = not_judged([(_counters(250, grad_norm=12), "float16")])
    assert NotJudged("gradient-spike", "run-too-short", "grad_norm", 12, 65, 16_384, "12 of 65 gradient norms") == entry


def test_a_long_run_with_few_readings_names_the_budget() -> None:
    entry = _open(_counters(40_000, grad_norm=70))["gradient-spike"]
    assert ("budget", 70, 130) == (entry.reason, entry.read, entry.needed)


def test_what_is_never_read_is_not_blamed_on_the_length() -> None:
    entry = _open(_counters(200, weights_nonfinite=0))["nonfinite-weights"]
    assert ("never-read", "0 of 1 weight reading") == (entry.reason, entry.text)


def test_a_run_of_few_steps_has_not_applied_enough_of_them() -> None:
    entry = _open(_counters(120))["stagnation"]
    assert ("run-too-short", "applied", "120 of 200 applied steps") == (entry.reason, entry.column, entry.text)


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_a_verdict_on_float16_does_not_apply_to_other_runs(precision: str) -> None:
    assert "gradient-underflow" in _open(_counters(grad_absmax=1), "float16")
    assert "gradient-underflow" not in _open(_counters(grad_absmax=1), precision)
    assert "gradient-underflow" in _open(_counters(grad_absmax=1, float16_tensors=3), precision)


def test_verdicts_on_operators_apply_under_autocast_only() -> None:
    operators = {
        "fp32-fallback",
        "sdpa-math",
        "misaligned-matmul",
        "cast-churn",
        "activation-casts",
        "dtype-switched",
        "sensitive-op-in-half",
    }
    assert operators == _open(_counters(**{CENSUS: 0}), "bfloat16").keys()
    assert {} == _open(_counters(**{CENSUS: 0}), "float32")


def test_lost_updates_needs_half_precision_tensors() -> None:
    assert {} == _open(_counters(lost_updates=1))
    assert {"lost-updates"} == _open(_counters(lost_updates=1, half_tensors=2)).keys()


def test_a_run_with_a_scaler_needs_no_judgement_about_its_absence() -> None:
    assert "no-loss-scaling" in _open(_counters(5, scale=0))
    assert "no-loss-scaling" not in _open(_counters(5))


def test_memory_applies_to_runs_with_a_device_only() -> None:
    assert "memory-not-saved" not in _open(_counters())
    assert {"memory-not-saved", "launch-bound"} == _open(_counters(device_reserved_bytes=2)).keys()


def test_the_utilization_of_a_device_is_read_by_time_and_not_by_the_budget() -> None:
    few = _open(_counters(40_000, device_reserved_bytes=900, device_utilization=3))["launch-bound"]
    assert ("run-too-short", "3 of 6 device utilization readings") == (few.reason, few.text)
    none = _open(_counters(40_000, device_reserved_bytes=900))["launch-bound"]
    assert "never-read" == none.reason


def test_one_rank_or_attempt_that_was_read_suffices() -> None:
    assert [] == not_judged([(_counters(100, grad_norm=3), "float16"), (_counters(), "float16")])
    (entry, *_) = not_judged([(_counters(100, grad_norm=count), "float16") for count in (3, 40, 7)])
    assert 40 == entry.read


def test_a_reached_verdict_is_judged_whatever_was_read() -> None:
    rarely = (_counters(40_000, grad_norm=70), "float16")
    assert "gradient-spike" not in {entry.verdict for entry in not_judged([rarely], {"gradient-spike"})}
    assert "gradient-spike" in {entry.verdict for entry in not_judged([rarely], {"sign-flip"})}


def test_streams_of_earlier_versions_and_without_steps_are_ignored() -> None:
    assert [] == not_judged([({"steps": 100, "applied": 100}, "float16"), ({}, None), (_counters(0), None)])


def test_sentences_group_verdicts_by_reason() -> None:
    counters = _counters(600, grad_norm=12, grad_agreement=5, weights_nonfinite=0, update_ratio=1)
    assert [
        "Not judged, too few readings (the run is too short): gradient-spike (12 of 65 gradient norms), sign-flip"
        " (5 of 64 gradient comparisons).",
        "Not judged, too few readings (the budget allows too few readings; a higher AMMETER_BUDGET allows more):"
        " stagnation (1 of 3 update readings).",
        "Not judged, too few readings (nothing was read; the preset, the model or the program leaves it out):"
        " nonfinite-weights (0 of 1 weight reading).",
    ] == sentences(not_judged([(counters, "float16")]))


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda verdict: verdict.id)
def test_every_need_is_counted_and_has_a_name(verdict: Any) -> None:
    for need in verdict.needs:
        assert need.column in NOUNS
        assert need.column in (*COLUMNS, CENSUS, "applied")
        assert need.count > 0


def test_verdicts_that_read_sampled_columns_declare_their_needs() -> None:
    sampled = {"grad_norm", "grad_absmax", "grad_agreement", "update_ratio", "lost_updates", "weights_nonfinite"}
    event_decides = {
        "clip-before-unscale",
        "no-gradients",
        "poisoned-buffers",
    }  # columns are a second way to the finding
    every_step = {
        "overflow-storm",
        "ranks-disagree",
        "nonfinite-loss",
        "nonfinite-gradient",
        "diverged",
    }  # norms are evidence
    statistical = {
        verdict.id
        for verdict in verdicts.STREAM_VERDICTS
        if sampled & set(verdict.columns) or "kernels.census" in verdict.events
    }
    assert statistical - event_decides - every_step <= {verdict.id for verdict in VERDICTS}


def test_a_need_grows_with_the_run() -> None:
    assert [3, 3, 6] == [Readings("grad_absmax", 3, within=1000).needed(steps) for steps in (10, 1999, 2000)]
    assert 3 == Readings("grad_absmax", 3).needed(10**6)


def test_facts_of_an_unknown_stream_exclude_every_special_verdict() -> None:
    assert {"gradient-spike", "sign-flip", "stagnation", "nonfinite-weights"} == {
        verdict.id for verdict in VERDICTS if verdict.applies(RunFacts())
    }


def test_a_history_suffices_only_by_columns_that_the_verdict_reads() -> None:
    assert {} == {verdict.id: verdict.history for verdict in ALL if not set(verdict.history) <= set(verdict.columns)}


def test_in_an_imported_history_only_verdicts_whose_columns_are_there_are_judged() -> None:
    stream = Stream(())
    stream.frames[0] = msgspec.structs.replace(stream.frames[0], environment={IMPORTED: "csv"})
    for _ in range(300):
        stream.step(loss=1.0, grad_norm=1.0)
    for cut in (views(stream.frames), views(stream.frames, range(0, 400, 7))):
        counters: dict[str, Any] = {}
        for view in cut:
            counters = advance(counters, view)
        found = {entry.verdict: entry.column for entry in not_judged([(counters, None)])}
        assert {"diverged", "nonfinite-loss", "nonfinite-gradient"} == {
            verdict.id for verdict in STREAM_VERDICTS if verdict.id not in found
        }
        assert ("applied", "val_loss") == (found["gradient-spike"], found["nonfinite-validation"])
        assert "Not judged, because the imported history does not have what they read: " in "".join(
            sentences(not_judged([(counters, None)]))
        )
