"""Each claim of a finding has its evidence in the finding."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ammeter import verdicts
from ammeter.verdicts.framework.finding import Finding
from tests.agent import stream_judgement
from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import findings, views
from tests.agent.verdicts.adversarial_streams import (
    ADVERSARIAL,
    a_frontier_of_gradients_below_a_nan_loss,
    a_held_scale_that_works_again,
    a_nan_loss_that_no_step_followed,
    a_poisoned_buffer_with_clean_weights,
    a_scale_that_falls_to_1_and_works_there,
    an_attention_of_the_program_that_overflows_before_its_softmax,
    an_overflow_that_stops_when_the_scale_backs_off,
    goods,
    one_sample_that_overflows_at_a_scale_of_2_to_the_13,
)
from tests.agent.verdicts.claims import CLAIMS, VETTED, unfounded
from tests.agent.verdicts.test_all import EVERY, chaos


def emitted(stream: Stream) -> Iterable[tuple[Finding, int]]:
    """Every finding that somebody would be shown while the stream goes on, with its verdict's first step so far."""
    states: dict[str, bytes] = {}
    decoded: verdicts.Decoded = {}
    earliest: dict[str, int] = {}
    for view in views(stream.frames, cuts=range(len(stream.frames))):
        answer = verdicts.judge(states, view, decoded)
        states = answer.states
        for finding in answer.findings:
            earliest[finding.verdict] = min(finding.first_step, earliest.get(finding.verdict, finding.first_step))
            yield finding, earliest[finding.verdict]


def claimed(stream: Stream) -> list[str]:
    return sorted({claim for finding, earliest in emitted(stream) for claim in unfounded(finding, earliest)})


@pytest.mark.parametrize("name", [*EVERY, *ADVERSARIAL])
def test_every_text_of_a_stream_claims_only_what_was_seen(name: str) -> None:
    assert [] == claimed((EVERY | ADVERSARIAL)[name]())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_text_claims_only_what_was_seen_in_chaos(data: st.DataObject) -> None:
    assert [] == claimed(data.draw(chaos()))


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_the_hostile_streams_are_judged_the_same_however_they_are_cut(name: str) -> None:
    stream = ADVERSARIAL[name]()
    stream.frames = stream.frames[:400]
    assert stream_judgement.judged(stream) == stream_judgement.judged(stream, cuts=range(len(stream.frames)))


SEEN = Finding("nonfinite-gradient", "page", 4, 5, 9, "why.", "do.", "what", evidence={})


@pytest.mark.parametrize(
    ("said", "evidence"),
    [
        ("It is no overflow.", {"lowest_failed_scale": 1.0}),
        ("Gradients are non-finite at any scale.", {"lowest_failed_scale": 0.5}),
        ("The weights are poisoned.", {"nonfinite_weight": "head.weight"}),
        ("The weights contain NaN.", {"nonfinite_weight": "head.weight"}),
        ("2 weight tensors contain NaN or Inf.", {"nonfinite_weight": "head.weight"}),
        ("So no weight was changed.", {"steps_applied": 0}),
        ("It originated in the backward pass of head.", {"born_in": "backward", "loss_finite": True}),
        ("It originated in the forward pass of head.", {"born_in": "forward", "last_finite_absmax": 7.0}),
        ("The first NaN or Inf was in x.", {"born_in": "input"}),
    ],
)
def test_a_claim_without_its_evidence_is_found_wherever_it_is_made(said: str, evidence: dict[str, object]) -> None:
    for where in ("title", "cause", "fix"):
        finding = replace(SEEN, **{where: said})
        assert [] != list(unfounded(finding))
        assert [] == list(unfounded(replace(finding, evidence=evidence)))


@pytest.mark.parametrize(
    "said",
    [
        "It never worked.",
        "The run always fails there.",
        "Only that batch is to blame.",
        "It is not the data.",
        "Every later loss is worthless.",
        "The run recovered from it.",
        "The weights are unharmed.",
        "The NaN originated there.",
    ],
)
def test_words_that_nothing_shows_are_found(said: str) -> None:
    assert [] != list(unfounded(replace(SEEN, cause=said)))


def test_a_scale_that_worked_later_takes_the_proof_away() -> None:
    finding = replace(SEEN, cause="Non-finite at any scale.", evidence={"lowest_failed_scale": 1.0})
    assert [] == list(unfounded(finding))
    assert [] != list(unfounded(replace(finding, evidence={**finding.evidence, "applied_again_at_scale": 0.5})))


def test_a_second_episode_says_when_the_first_began() -> None:
    finding = replace(SEEN, cause="So since step 4.", times=2)
    assert [] != list(unfounded(finding, earliest=2))
    told = replace(finding, cause="So since step 4, for the 2nd time (the first began at 2).")
    assert [] == list(unfounded(told, earliest=2))


def test_the_tables_name_verdicts_and_claims_that_there_are() -> None:
    assert set(VETTED) - {"*"} <= set(verdicts.BY_ID)
    assert len({claim.words for claim in CLAIMS}) == len(CLAIMS)


def test_an_overflow_that_stopped_is_not_said_to_be_one_at_any_scale() -> None:
    for stream in (an_overflow_that_stops_when_the_scale_backs_off(), a_scale_that_falls_to_1_and_works_there()):
        finding = findings(stream)["scale-collapse"]
        assert "Steps are applied again since step" in finding.cause
        assert "either the gradients overflow above it, or the bad batches have passed" in finding.cause
        assert "init_scale=1" in finding.fix
        assert "1/scale" not in finding.cause


def test_a_scale_that_was_held_and_works_again_is_not_blamed() -> None:
    finding = findings(a_held_scale_that_works_again())["scale-collapse"]
    assert "so the bad batches have passed" in finding.cause
    assert "Every step from 40 to 46 was skipped" in finding.title


def test_one_sample_that_overflows_is_left_open() -> None:
    finding = findings(one_sample_that_overflows_at_a_scale_of_2_to_the_13())["nonfinite-gradient"]
    assert "not an overflow" not in finding.cause
    assert "run the same batch with GradScaler(init_scale=1) to decide" in finding.cause
    assert 4096 == finding.evidence["next_applied_scale"]


def test_a_nan_loss_is_over_when_steps_are_applied_and_not_when_losses_are_finite() -> None:
    stream = a_nan_loss_that_no_step_followed()
    assert findings(stream)["nonfinite-loss"].active
    assert not findings(goods(stream, 10, 1.0))["nonfinite-loss"].active


def test_a_nan_loss_is_not_said_to_be_born_in_backward() -> None:
    finding = findings(a_frontier_of_gradients_below_a_nan_loss())["nonfinite-loss"]
    assert "backward" not in finding.cause
    assert finding.evidence["born_in"] is None


def test_a_buffer_that_is_nan_is_not_called_a_weight() -> None:
    finding = findings(a_poisoned_buffer_with_clean_weights())["nonfinite-loss"]
    assert "norm.running_mean, a buffer of the model, contains NaN or Inf" in finding.cause
    assert "weights contain" not in finding.cause.lower()
    assert "norm.running_mean" == finding.evidence["nonfinite_buffer"]


def test_an_attention_whose_scores_may_overflow_is_no_masked_row() -> None:
    assert "masked-row-nan" not in findings(an_attention_of_the_program_that_overflows_before_its_softmax())
