"""The calls of one step share the time of a census, and their number is bounded."""

from __future__ import annotations

import torch

from ammeter.probes.kernels.census import MAX_SECONDS
from ammeter.probes.kernels.forward_call import ForwardCall
from ammeter.probes.kernels.step_census import MAX_CALLS, StepCensus


def test_a_call_that_used_up_the_time_leaves_none_for_the_next_one() -> None:
    step, model = StepCensus(with_references=False), torch.nn.Linear(4, 4)
    call = ForwardCall(step.begin(), model, "", lambda function: function)
    model(torch.ones(2, 4))
    assert call.census.is_complete
    call.census.seconds = MAX_SECONDS
    call.end()
    assert MAX_SECONDS == step.add(call, has_raised=False)
    assert not step.begin().is_complete


def test_a_model_counts_once_and_so_many_models_count_at_most() -> None:
    step = StepCensus(with_references=False)
    models = [torch.nn.Identity() for _ in range(MAX_CALLS + 1)]
    assert [True] * MAX_CALLS + [False] == [step.is_first_call(model) for model in models]
    assert not step.is_first_call(models[0])
