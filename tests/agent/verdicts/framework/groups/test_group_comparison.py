from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ammeter.verdicts.framework.groups.group_comparison import GroupComparison, Member, compare_groups
from ammeter.verdicts.framework.run_history import Curve, RunHistory

A, B = (1.00, 1.02, 0.98, 1.01), (1.20, 1.22, 1.17, 1.21)


def curve(values: Sequence[float], first: int = 0, every: int = 1) -> Curve:
    return Curve(np.arange(first, first + every * len(values), every, dtype=np.int64), np.array(values, np.float32))


def member(
    name: str,
    value: float,
    seed: int | None,
    *,
    metric: str = "val_loss",
    config: dict[str, Any] | None = None,
    tags: dict[str, str] | None = None,
    **facts: Any,
) -> Member:
    """A run of a hundred steps that is validated at the steps 49 and 99; its loss depends on the seed and the value."""
    noise = np.random.default_rng([int(1e6 * value) if math.isfinite(value) else 7, seed or 0]).normal(0, 0.01, 100)
    losses = (value if math.isfinite(value) else 1.0) + noise
    curves = {"loss": curve(losses.tolist()), metric: curve([9.0, value], 49, 50)}
    given = {"lr": 0.1} | ({} if seed is None else {"seed": seed}) | (config or {})
    history = RunHistory(name, given, over=True, curves=curves, last_step=99, tags=tags or {}, **facts)
    return Member(f"{name}-{seed}-{value}", history)


def group(name: str, values: Sequence[float], **more: Any) -> list[Member]:
    return [member(name, value, seed, **more) for seed, value in enumerate(values)]


def compared(a: Sequence[Member], b: Sequence[Member], **more: Any) -> GroupComparison:
    return compare_groups(a, b, **more)


def test_a_difference_far_beyond_the_scatter_of_the_seeds_is_a_decision_with_its_interval() -> None:
    comparison = compared(group("new", A), group("old", B))
    assert "better" == comparison.result
    assert comparison.interval is not None
    assert pytest.approx(-0.1975, abs=1e-6) == comparison.interval.difference
    assert comparison.interval.low < -0.1975 < comparison.interval.high < 0
    (reason,) = comparison.reasons
    assert reason.startswith(
        "mean val_loss at step 99: 1.0025 over 4 runs against 1.2 over 4, lower is better. The difference is -0.198, "
        "with 95% confidence between -0.23"
    )
    assert [] == comparison.notes


def test_the_same_runs_the_other_way_round_are_worse() -> None:
    there, back = compared(group("new", A), group("old", B)), compared(group("old", B), group("new", A))
    assert ("better", "worse") == (there.result, back.result)
    assert there.interval is not None
    assert back.interval is not None
    assert (there.interval.low, there.interval.high) == (-back.interval.high, -back.interval.low)


def test_of_a_metric_that_is_better_higher_the_higher_group_is_better() -> None:
    said = {"metric": "accuracy", "tags": {"better.accuracy": "higher"}}
    comparison = compared(group("new", B, **said), group("old", A, **said))
    assert ("better", "accuracy") == (comparison.result, comparison.measurement and comparison.measurement.metric)


def test_a_difference_within_the_scatter_is_none_and_no_proof_of_equality() -> None:
    comparison = compared(group("new", (1.0, 1.1, 0.9)), group("old", (1.02, 1.11, 0.91)))
    assert "not distinguishable" == comparison.result
    assert comparison.reasons[0].endswith("which includes 0. That does not show that the groups are equal")


@pytest.mark.parametrize(("a", "b"), [(A[:1], B[:1]), (A[:2], B), (A, B[:2])])
def test_too_few_runs_decide_nothing_however_far_they_are_apart(a: Sequence[float], b: Sequence[float]) -> None:
    comparison = compared(group("new", a), group("old", b))
    assert ("too few runs", None) == (comparison.result, comparison.interval)
    assert any("independent run" in reason and "3 are needed" in reason for reason in comparison.reasons)


def test_repetitions_with_one_seed_count_once() -> None:
    repeated = [member("new", value, 5) for value in A]
    comparison = compared(repeated, group("old", B))
    assert ("too few runs", ["A has 1 independent run; 3 are needed"]) == (comparison.result, comparison.reasons)
    assert "4 runs of A count as 1: runs with one seed" in comparison.notes[0]
    assert [pytest.approx(sum(A) / 4)] == list(comparison.values[0])


def test_runs_with_losses_that_are_equal_to_the_bit_count_once_without_a_seed() -> None:
    one = member("new", 1.0, None)
    copies = [Member(f"copy {number}", one.history) for number in range(4)]
    comparison = compared(copies, group("old", B))
    assert "too few runs" == comparison.result
    assert 1 == comparison.as_json()["a"]["independent"]


def test_runs_without_a_recorded_seed_are_independent_and_that_is_said() -> None:
    several = [[member(name, value, None) for value in values] for name, values in (("new", A), ("old", B))]
    comparison = compared(*several)
    assert "better" == comparison.result
    assert ["no seed is recorded in the config; the runs of a group are taken as independent"] == comparison.notes


def test_a_run_that_is_not_finite_is_not_left_out_silently() -> None:
    comparison = compared([*group("new", A), member("bad", math.nan, 9)], group("old", B))
    assert "not comparable" == comparison.result
    assert [
        "val_loss of 1 of the 5 runs of A is not finite (bad); a mean of the others would hide that"
    ] == comparison.reasons


def test_a_group_of_two_trainings_is_no_group() -> None:
    mixed = [*group("new", A[:3]), member("other", 1.0, 7, config={"lr": 0.3})]
    comparison = compared(mixed, group("old", B))
    assert "not comparable" == comparison.result
    assert ["the runs of A differ in more than their seed: lr is 0.3 against 0.1 (other, new)"] == comparison.reasons
    assert "better" == compared(mixed, group("old", B), ignored=frozenset({"lr"})).result


def test_what_the_groups_differ_in_is_named_with_the_decision() -> None:
    half = group("half", A, precision="bfloat16", config={"warmup": 10})
    comparison = compared(half, group("full", B, precision="float32"))
    assert [
        "the groups differ in precision is bfloat16 against float32; warmup is 10 against not set. The decision is "
        "about all of it together"
    ] == comparison.notes


def test_without_a_common_validation_the_late_training_loss_is_compared_and_said() -> None:
    comparison = compared(group("new", A, metric="acc1"), group("old", B, metric="acc2"))
    assert ("better", "loss", 75, 99) == (
        comparison.result,
        *(getattr(comparison.measurement, name) for name in ("metric", "first_step", "last_step")),
    )
    assert "the training loss is compared, which says nothing about new data" in comparison.notes


def test_a_metric_that_not_all_runs_have_is_not_comparable() -> None:
    comparison = compared(group("new", A), group("old", B), metric="bleu")
    assert ["the 8 runs do not have bleu at a step of all"] == comparison.reasons


def test_a_metric_without_a_direction_is_not_guessed() -> None:
    groups = group("new", A, metric="bleu"), group("old", B, metric="bleu")
    comparison = compared(*groups, metric="bleu")
    assert "not comparable" == comparison.result
    assert [
        "nothing says whether a higher bleu is better; give the option better, or set the tag better.bleu"
    ] == comparison.reasons
    assert ["worse", "better"] == [
        compared(*groups, metric="bleu", better=better).result for better in ("higher", "lower")
    ]


def test_a_run_in_both_groups_is_a_mistake() -> None:
    both = group("new", A)
    assert "not comparable" == compared(both, [*both[:1], *group("old", B)]).result


def test_values_without_any_scatter_decide_nothing() -> None:
    said = {"metric": "accuracy", "tags": {"better.accuracy": "higher"}}
    flat = compared(group("new", (0.9,) * 4, **said), group("old", (0.8,) * 4, **said))
    assert "too few runs" == flat.result
    assert "equal within each group" in flat.reasons[0]
