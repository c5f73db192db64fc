"""not-comparable names the settings that differ and are not meant to, and stands before what they explain."""

from __future__ import annotations

import pytest

from ammeter.verdicts.causality import explain
from tests.agent.pairs import CONFIG, check_words, course, judged


def test_settings_that_differ_are_named_with_both_values() -> None:
    other = {**CONFIG, "batch": 4, "model": {"width": 128}}
    finding = judged(course(config=other), course())["not-comparable"]
    check_words(finding)
    assert ("ticket", 0, 199) == (finding.severity, finding.first_step, finding.last_step)
    assert (
        "in 2 settings besides precision: it has batch 4, model.width 128; the baseline has batch 8, model.width 64."
        in (finding.cause)
    )
    assert "baseline_ignore=batch,model.width." in finding.fix
    assert "The baseline differs in more than precision: batch, model.width" == finding.title


def test_a_setting_that_only_one_of_them_has_is_one() -> None:
    finding = judged(course(config={**CONFIG, "dropout": 0.1}), course())["not-comparable"]
    assert "1 setting besides precision: it has dropout 0.1; the baseline has dropout not set" in finding.cause


def test_where_it_ran_counts_too() -> None:
    finding = judged(course(world_size=4), course())["not-comparable"]
    assert "it has world_size 4; the baseline has world_size 1" in finding.cause


@pytest.mark.parametrize(
    "setting",
    [{"precision": "bf16"}, {"train": {"mixed_precision": "fp16"}}, {"output_dir": "/b"}, {"epochs": 3}, {"seed": 7}],
)
def test_the_precision_names_lengths_and_seeds_may_differ(setting: dict[str, object]) -> None:
    assert {} == judged(course(config={**CONFIG, **setting}), course())


HANDED_OVER = {"name": "transformers", "version": "5.0", "weight_decay": 0.1, "optim": "adamw", "save_steps": 10}
"""Settings of a framework, as an integration hands them over."""


@pytest.mark.parametrize("change", [{"save_steps": 20}, {"eval_delay": 3}, {"bf16": True}, {"dropout": 0.1}])
def test_settings_of_a_framework_may_differ_where_no_step_does_or_one_run_has_none(change: dict[str, object]) -> None:
    mine, theirs = ({**CONFIG, "framework": {**HANDED_OVER, **own}} for own in (change, {}))
    assert {} == judged(course(config=mine), course(config=theirs))
    assert {} == judged(course(config=mine), course())


@pytest.mark.parametrize(("change", "compared"), [({"optim": "sgd"}, ""), ({"weight_decay": 0.2}, "step time, memory")])
def test_settings_of_a_framework_that_change_a_step_are_named(change: dict[str, object], compared: str) -> None:
    mine, theirs = ({**CONFIG, "framework": {**HANDED_OVER, **own}} for own in (change, {}))
    finding = judged(course(config=mine), course(config=theirs))["not-comparable"]
    (name,) = change
    assert f"framework.{name} " in finding.cause
    assert compared in finding.cause.partition("Still compared")[2]


def test_what_may_differ_can_be_said() -> None:
    other = {**CONFIG, "lr": 0.1}
    assert {} == judged(course(config=other), course(), ignored=frozenset(("lr",)))


def test_what_differs_in_everything_says_nothing_of_speed_or_validation() -> None:
    slow = course(
        precision="bfloat16", config={**CONFIG, "batch": 64}, row=lambda step: {"step_seconds": 0.1, "val_loss": 9.0}
    )
    found = judged(slow, course())
    assert ["not-comparable"] == list(found)
    assert "Ammeter does not compare step time, memory, cost and validation." in found["not-comparable"].cause


def test_it_explains_what_it_does_not_forbid() -> None:
    slow = course(precision="bfloat16", config={**CONFIG, "lr": 0.5}, row=lambda step: {"step_seconds": 0.1})
    found = judged(slow, course())
    assert {"not-comparable", "slower-than-fp32"} == set(found)
    (cause,) = explain([("", finding) for finding in found.values()])
    assert ("not-comparable", ["slower-than-fp32"]) == (
        cause.finding.verdict,
        [consequence.verdict for consequence in cause.consequences],
    )
    assert "Ammeter does not compare validation. Still compared: step time, memory and cost." in cause.finding.cause


def test_many_are_counted_and_long_values_cut() -> None:
    other = {**CONFIG, **{f"option_{at:02}": "x" * 100 for at in range(12)}}
    finding = judged(course(config=other), course())["not-comparable"]
    assert "12 settings" in finding.cause
    assert "and 4 more" in finding.cause
    assert "x" * 41 not in finding.cause
