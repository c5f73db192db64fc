"""nonfinite-loss fires at the step itself, and says whether the weights took harm."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.streams_values import born
from tests.agent.training import watching


def found(stream: Stream) -> Finding:
    return findings(stream)["nonfinite-loss"]


def test_it_opens_at_once() -> None:
    finding = found(warm(40, scale=None).bad(last=5, loss=math.nan))
    assert ("page", 40, 40) == (finding.severity, finding.first_step, finding.opened_step)
    assert "Loss is NaN at step 40" == finding.title


def test_one_batch_that_the_scaler_skipped_can_wait_and_two_cannot() -> None:
    once = warm().bad(65536, last=5, loss=math.nan)
    assert "ticket" == found(once).severity
    assert "The step was skipped, so no weight was changed; buffers" in found(once).cause
    assert "page" == found(once.bad(32768, last=5, loss=math.nan)).severity


def test_an_applied_step_with_broken_gradients_poisons_the_weights() -> None:
    finding = found(warm(scale=None).bad(last=5, loss=math.nan))
    assert (
        "The step was applied with non-finite gradients. No reading has found NaN or Inf in the weights since."
        in finding.cause
    )
    assert "No GradScaler is in use that would have skipped it." in finding.cause
    assert "All 6 gradients that were read are non-finite, so they do not show the origin." in finding.cause
    assert "restore a checkpoint from before step 40" in finding.fix
    assert finding.evidence["weights_at_risk"]


def test_an_applied_step_with_finite_gradients_does_not() -> None:
    finding = found(warm().good(65536, loss=math.inf))
    assert "Loss is infinite at step 40" == finding.title
    assert "The step was applied; the gradients that were read there were finite." in finding.cause
    assert "Stop the run" not in finding.fix
    wasted = found(warm().good(65536, loss=math.inf, norm=0.0))
    assert "were finite and zero, so such a step does not learn from the loss." in wasted.cause
    assert "Stop the run: steps with zero gradients are wasted." in wasted.fix
    assert not finding.evidence["weights_at_risk"]
    assert "Infinity" == finding.evidence["loss"]


def test_where_the_gradients_were_not_read_it_says_so() -> None:
    finding = found(warm(scale=None).step(loss=math.nan, applied=1, skipped=0))
    assert (
        "applied and its gradients were not read. No reading has found NaN or Inf in the weights since."
        in finding.cause
    )


def test_a_program_with_its_own_loss_scale_may_have_skipped_an_earlier_step_of_the_same_row() -> None:
    def bad() -> Stream:
        stream = Stream().autocast().event("scaler.seen", enabled=True, scale=1024.0, own=True)
        for _ in range(20):
            stream.good(1024)
        return stream.bad(1024, last=5, loss=math.nan, applied=1, skipped=0)

    finding = found(bad())
    assert "whether it applied or skipped this step was not seen; no reading has found NaN or Inf" in finding.cause
    assert ("ticket", None) == (finding.severity, finding.evidence["steps_applied"])
    poisoned = found(bad().good(1024).event("weights.nonfinite", tensors=["blocks.1.fc.weight"], count=1))
    assert "applied with non-finite gradients; since then the weights contain NaN or Inf" in poisoned.cause
    assert ("page", 1) == (poisoned.severity, poisoned.evidence["steps_applied"])


def test_a_step_with_more_backward_passes_may_contain_one_that_the_program_dropped() -> None:
    def after(passes: int, norm: float = 1.0) -> Finding:
        stream = Stream().autocast("bfloat16")
        for _ in range(20):
            stream.good(micro_batches=2)
        return found(stream.good(loss=math.nan, norm=norm, micro_batches=passes))

    dropped = after(3)
    assert "Whether the program applied this step or dropped a backward pass was not seen" in dropped.cause
    assert ("page", None, False) == (
        dropped.severity,
        dropped.evidence["steps_applied"],
        dropped.evidence["weights_at_risk"],
    )
    for passes in 1, 2:
        assert "The step was applied; the gradients that were read there were finite." in after(passes).cause
    assert "The step was applied with non-finite gradients." in after(3, math.nan).cause


def test_a_loss_that_was_not_measured_is_no_nan() -> None:
    assert {} == findings(warm().step(applied=1, skipped=0, scale=65536))


def test_ten_finite_losses_end_it() -> None:
    stream = warm().bad(65536, last=5, loss=math.nan)
    for _ in range(9):
        stream.good(32768)
    assert found(stream).active
    assert not found(stream.good(32768)).active


def test_the_gradients_that_are_nan_with_it_are_no_finding_of_their_own() -> None:
    assert {"nonfinite-loss"} == set(findings(warm().bad(65536, last=5, loss=math.nan).good(32768)))


def test_an_argument_that_was_not_finite_is_named_with_its_micro_batch_and_sample() -> None:
    stream = warm(20).bad(65536, last=5, loss=math.nan)
    data = {"kind": "input", "module": "", "input": "batch['image']", "micro_batch": 1, "sample": 3, "absmax": 7.5}
    finding = found(stream.event("origin.found", **data, nans=2, infs=0, dtype="float32", confidence="inputs", since=0))
    assert (
        "The model's argument batch['image'] contained NaN or Inf already (micro-batch 1, sample 3, counted from 0);"
        " its finite values are at most 7.5." in finding.cause
    )
    assert (
        "Check the data of step 20: the model's argument batch['image'], sample 3, contains NaN or Inf." in finding.fix
    )
    assert ("input", 1, 7.5) == tuple(
        finding.evidence[name] for name in ("born_in", "micro_batch", "last_finite_absmax")
    )
    assert "ticket" == finding.severity


def test_the_module_where_it_was_born_is_named_with_what_went_in() -> None:
    stream = warm(20).bad(65536, last=5, loss=math.nan).bad(32768, last=5, loss=math.nan)
    data = {"kind": "forward", "module": "blocks.1.fc", "class": "Linear", "op": "AddmmBackward0", "dtype": "float16"}
    finding = found(stream.event("origin.found", **data, direction="forward", absmax=812.0, nans=0, infs=4, since=1))
    assert (
        "originated in the forward pass of blocks.1.fc (AddmmBackward0, float16), from inputs of at most 812."
        in finding.cause
    )
    assert "so no weight was changed" in finding.cause
    assert "Check blocks.1.fc for an overflow above 65504" in finding.fix
    assert "blocks.1.fc" == finding.module


def test_a_loss_that_is_born_behind_the_model_is_told_as_such() -> None:
    stream = warm(20).good(65536, loss=math.nan)
    data = {"kind": "forward", "module": "", "op": "loss", "direction": "forward", "absmax": 3.25}
    finding = found(stream.event("origin.found", **data, confidence="hooks", since=0))
    assert "The model's outputs are finite, at most 3.25: the NaN or Inf comes from the targets" in finding.cause
    assert "a mean over no targets" in finding.fix


def test_weights_that_were_not_finite_before_are_not_called_unharmed() -> None:
    stream = warm(20).bad(65536, last=5, loss=math.nan)
    told = {"tensors": ["blocks.0.fc.weight"], "count": 1, "elements": 1, "last_finite": 12}
    for event, data in (
        ("weights.nonfinite", told),
        (
            "origin.found",
            {"kind": "weights", "module": "blocks.0.fc", "tensor": "blocks.0.fc.weight", "op": "Addmm", "since": 0},
        ),
    ):
        finding = found(warm(20).bad(65536, last=5, loss=math.nan).event(event, **data))
        assert "no weight was changed" not in finding.cause
        assert "The weights contained NaN or Inf before, blocks.0.fc.weight among them" in finding.cause
        assert "restore a checkpoint from before step 20" in finding.fix
        assert "batch of" not in finding.fix
        assert ("page", True) == (finding.severity, finding.evidence["weights_at_risk"])
    assert "blocks.0.fc.weight" == found(stream.event("weights.nonfinite", **told)).tensor


def test_weights_that_the_step_itself_poisoned_are_no_cause_of_it() -> None:
    stream = warm(scale=None).bad(last=5, loss=math.nan).bad(last=5, loss=math.nan)
    stream.event("weights.nonfinite", tensors=["embed.weight"], count=6, elements=9, last_finite=39)
    data = {"kind": "weights", "module": "embed", "tensor": "embed.weight", "op": "EmbeddingBackward0", "since": 1}
    finding = found(stream.event("origin.found", **data))
    assert "since then the weights contain NaN or Inf, embed.weight among them." in finding.cause
    assert "contained NaN or Inf before" not in finding.cause


class Picture(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(6, 4)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, image: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(torch.relu(self.body(image))) * weight
        return scores


def test_a_real_run_names_the_argument_that_its_loader_gave(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Picture()
    optimizer, scaler = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cpu")
    with watching(tmp_path, model, optimizer, scaler) as seen:
        for step in range(8):
            image, weight = torch.randn(5, 6), torch.ones(5, 2)
            if step == 5:
                weight[4, 0] = math.inf
            with torch.autocast("cpu", torch.float16):
                loss = model(image, weight).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    finding = seen.findings()["nonfinite-loss"]
    assert 5 == finding.first_step
    assert "The model's argument weight contained NaN or Inf already (micro-batch 0, sample 4" in finding.cause
    assert "The step was skipped, so no weight was changed; buffers" in finding.cause


def test_a_loss_function_that_makes_the_nan_is_told_with_what_loss_functions_do() -> None:
    stream = born(warm(40).good(65536, loss=float("nan")), module="", op="NllLossBackward0", absmax=0.0, since=0)
    finding = findings(stream)["nonfinite-loss"]
    assert (
        "The NaN or Inf originated in the forward pass of the model's own code (NllLossBackward0, float16)."
        in finding.cause
    )
    assert "a mean over no targets (all ignored)" in finding.fix


def test_a_gradient_inside_the_loss_that_overflows_with_the_scale_is_no_finding() -> None:
    def penalized(scale: float, kind: str = "gradient", **values: Any) -> Stream:
        stream = warm(40, scale=scale).bad(scale, last=5, loss=math.nan, **values)
        stream.event("origin.found", kind=kind, dtype="float16", op="MmBackward0", confidence="graph", since=0)
        return stream.bad(scale / 2, last=5, loss=math.nan, **values)

    silent = penalized(65536.0).bad(16384.0, last=5, loss=math.nan).good(8192.0, loss=1.0)
    assert "nonfinite-loss" not in findings(silent)
    assert "page" == found(penalized(65536.0, kind="forward")).severity
    persists = found(penalized(2.0).bad(1.0, last=5, loss=math.nan).bad(0.5, last=5, loss=math.nan))
    assert "page" == persists.severity
    applied = found(penalized(65536.0, applied=1, skipped=0))
    assert "is in a gradient that the loss contains" in applied.cause


def test_an_input_beyond_float16_is_told_with_what_its_conversion_makes() -> None:
    bad = warm().bad(65536, last=5, loss=math.nan).bad(32768, last=5, loss=math.nan)
    graph = {"confidence": "graph", "reason": "constant", "caller": "train.py:7", "op": "AddmmBackward0"}
    finding = found(born(bad, module="blocks.0.fc", absmax=0.5, input="x", beyond_float16=1e5, **graph))
    assert "blocks.0.fc (AddmmBackward0, float16) received a NaN or Inf from outside its graph" in finding.cause
    assert "the model's argument x has values of up to 1e+05, and a conversion to float16 makes those" in finding.cause
    assert "Normalize or clamp the model's argument x below 65504" in finding.fix


def test_an_input_that_is_read_in_a_later_step_is_told() -> None:
    """The first forward pass of a run is not observed."""
    bad = warm().bad(65536, last=5, loss=math.nan).bad(32768, last=5, loss=math.nan)
    graph = {"confidence": "graph", "reason": "constant", "caller": "train.py:7", "op": "AddmmBackward0"}
    later = born(bad, module="fc", absmax=0.5, **graph).bad(16384, last=5, loss=math.nan)
    finding = found(born(later, module="fc", absmax=0.5, input="x", beyond_float16=1e5, since=2, **graph))
    assert "the model's argument x has values of up to 1e+05" in finding.cause
