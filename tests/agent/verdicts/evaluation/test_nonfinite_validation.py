"""nonfinite-validation fires when validation is NaN and the training is not, and not for values that stand for none."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest

from ammeter.verdicts.causality import explain
from ammeter.verdicts.evaluation import nonfinite_validation as verdict
from ammeter.verdicts.evaluation.nonfinite_validation import FINITE_LOSSES, is_validation_loss
from ammeter.wire import columns
from ammeter.wire.frames import Event, Schema
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.streams import broken, healthy
from tests.agent.verdicts.nonfinite.test_poisoned_buffers import found_bad

NAME = "nonfinite-validation"
ORIGIN = {
    "kind": "forward",
    "module": "blocks.1.act",
    "class": "Act",
    "op": "Act",
    "dtype": "float32",
    "absmax": 2.0,
    "nans": 3,
    "infs": 0,
}
BUFFER = {"kind": "weights", "module": "blocks.0.norm", "tensor": "blocks.0.norm.running_mean", "buffer": True}


def evaluated(stream: Stream, **data: Any) -> Stream:
    step = stream.next_step - 1
    found = {"step": step, "passes": 4, "read": 2, "nonfinite": 2, "output": "", "is_loss": False, "value": "NaN"}
    found |= {"dtype": "float32", "caller": "loop/train.py:77", "eval": True, "weights": "float32", "autocast": ""}
    return stream.good(65536).event("evaluation.nonfinite", **found | data)


def trained(stream: Stream, steps: int = FINITE_LOSSES + 2) -> Stream:
    for _ in range(steps):
        stream.good(65536)
    return stream


@broken
def nonfinite_validation() -> Stream:
    """Each output in evaluation is NaN from one evaluation on."""
    stream = warm(20).event("evaluation.finite", step=18, passes=4, read=2)
    return trained(evaluated(trained(stream, 10), origin=ORIGIN))


def test_ten_finite_losses_after_the_evaluation_open_it_with_the_module() -> None:
    finding = findings(nonfinite_validation())[NAME]
    assert ("ticket", 29, 30 + FINITE_LOSSES) == (finding.severity, finding.first_step, finding.opened_step)
    assert ("blocks.1.act", "loop/train.py:77") == (finding.module, finding.caller)
    assert "blocks.1.act (Act, float32) returned 3 NaN from inputs that are finite, at most 2." in finding.cause
    assert "10 losses of applied steps after it were finite." in finding.cause


def test_too_few_finite_losses_leave_it_closed_until_the_run_ends() -> None:
    stream = trained(evaluated(warm(20)), FINITE_LOSSES - 2)
    assert NAME not in findings(stream)
    assert NAME in findings(stream.bye())


def test_losses_that_are_not_finite_either_are_the_one_finding() -> None:
    stream = evaluated(warm(20))
    for _ in range(40):
        stream.bad(65536, last=5, loss=math.nan)
    assert NAME not in findings(stream.bye())


def test_a_broken_buffer_is_the_cause_and_the_validation_its_consequence() -> None:
    stream = trained(found_bad(evaluated(warm(20), origin=BUFFER)))
    (cause,) = explain([("stream", finding) for finding in findings(stream).values()])
    assert "poisoned-buffers" == cause.finding.verdict
    (consequence,) = cause.consequences
    assert NAME == consequence.verdict
    assert "blocks.0.norm.running_mean, a buffer, contains NaN or Inf." in consequence.cause


def test_an_evaluation_without_nan_closes_it() -> None:
    stream = nonfinite_validation()
    assert findings(stream)[NAME].active
    stream.good(65536).event("evaluation.finite", step=stream.next_step - 2, passes=4, read=2)
    assert not findings(stream)[NAME].active


def test_weights_in_half_precision_in_evaluation_alone_are_named() -> None:
    overflow = ORIGIN | {"dtype": "float16", "nans": 0, "infs": 7}
    finding = findings(trained(evaluated(warm(20), weights="float16", dtype="float16", origin=overflow)))[NAME]
    assert "The weights were float16 in the evaluation and float32 in training: float16 ends at 65504." in finding.cause
    assert finding.fix.startswith("Evaluate in the precision of the training")


def validated(values: dict[int, float], steps: int = 80, *, reads: bool = False) -> Stream:
    stream = warm(0)
    if reads:
        stream.event("evaluation.finite", step=0, passes=2, read=2)
    for step in range(steps):
        stream.good(65536, **({"val_loss": values[step]} if step in values else {}))
    return stream


def test_a_logged_loss_is_enough_and_finite_outputs_point_behind_the_model() -> None:
    finding = findings(validated({9: 2.0, 19: 1.9, 29: math.nan, 39: math.nan}, reads=True))[NAME]
    assert (29, 39) == (finding.first_step, finding.opened_step)
    assert "The program logged val_loss=NaN since step 29." in finding.cause
    assert "read in evaluations since step 0 contain no NaN" in finding.cause
    unread = findings(validated({9: 2.0, 29: math.inf}))[NAME]
    assert "val_loss=Infinity" in unread.cause
    assert "No output of the watched model was read in evaluation" in unread.cause


def test_a_value_of_the_next_validation_closes_it() -> None:
    assert not findings(validated({9: 2.0, 19: math.nan, 49: 1.5}))[NAME].active


def test_a_first_value_counts_with_the_second_one_or_at_the_end() -> None:
    assert NAME not in findings(validated({9: math.nan}))
    assert 9 == findings(validated({9: math.nan}).bye())[NAME].first_step
    assert 9 == findings(validated({9: math.nan, 29: math.nan}))[NAME].first_step


def test_a_value_logged_late_counts_for_its_step() -> None:
    stream = validated({9: 2.0})
    stream.event("values.logged", val_loss=math.nan, accuracy=math.nan)
    assert 79 == findings(trained(stream))[NAME].first_step


@healthy
def nan_is_logged_in_the_steps_without_a_validation() -> Stream:
    return validated({step: 2.0 if step % 20 == 19 else math.nan for step in range(80)}).bye()


@healthy
def a_perplexity_overflows_and_a_metric_is_nan_for_an_absent_class() -> Stream:
    stream = validated({9: 2.0, 29: 1.9})
    return trained(stream.event("values.logged", val_perplexity=math.inf, val_iou_class3=math.nan)).bye()


@healthy
def the_best_validation_loss_is_infinite_at_first() -> Stream:
    stream = validated({})
    for _ in range(3):
        trained(stream.event("values.logged", best_val_loss=math.inf), 10)
    return stream.bye()


@pytest.mark.parametrize("name", ["val_loss", "val/loss", "eval_loss", "validation-loss", "test_loss_epoch"])
def test_a_loss_in_validation_is_known_by_its_name(name: str) -> None:
    assert is_validation_loss(name)


@pytest.mark.parametrize("name", ["loss", "train_loss", "best_val_loss", "val_accuracy", "valloss", "interval_loss"])
def test_another_value_is_not(name: str) -> None:
    assert not is_validation_loss(name)


@pytest.mark.parametrize("seed", range(40))
def test_the_last_of_finite_values_says_as_much_as_all(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    schema, chance = Schema(("loss", "val_loss", "eval/loss", "applied")), random.Random(seed)
    worst = chance.choice((0.0, 0.0, 0.002, 0.05))
    numbers = [chance.choice((1.5, 2.5)) if chance.random() >= worst else math.nan for _ in range(4 * 300)]
    values = np.array(numbers, np.float32).reshape(4, 300)
    values[1:3][np.array([chance.random() for _ in range(600)]).reshape(2, 300) < 0.6] = columns.ABSENT
    steps = np.arange(300, dtype=np.int64)
    view = columns.View(schema, steps, steps, values)
    edges = [0, *sorted(chance.sample(range(1, 300), 9)), 300]
    late = Event("values.logged", 120, 120, {"val_loss": 3.0})

    def concluded() -> list[bytes]:
        states = [verdict.State()]
        for begin, end in pairwise(edges):
            rows = view.rows(begin, end)
            rows = replace(rows, frames=[(len(rows), late)] if begin == edges[3] else [])
            states.append(verdict.judge(states[-1], rows)[0])
        return [msgspec.msgpack.encode(state, order="sorted") for state in states]  # NaN is equal to NaN

    quick = concluded()
    monkeypatch.setattr(verdict, "_is_healthy", lambda *_: False)
    assert concluded() == quick
