"""What probes tell is put into a sentence that says what to do, whatever the event holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ammeter.report.event_text import checkpoint, sentence
from ammeter.report.run_summary import seen_in
from ammeter.report.stream_summary import StreamSummary
from ammeter.wire.frames import Event
from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import views

DOCUMENTED = re.findall(
    r"^\| `(\w+\.\w+)` \|", (Path(__file__).parents[3] / "docs" / "events.md").read_text(), re.MULTILINE
)

TOLD: dict[str, tuple[dict[str, Any], str]] = {
    "usage.loss_not_scaled": ({"optimizer": "SGD", "scale": 65536.0}, "call scaler.scale(loss).backward()"),
    "usage.gradients_not_unscaled": ({"optimizer": "SGD", "scale": 8.0}, "by 8 (2^3): call scaler.step(optimizer)"),
    "usage.update_between_optimizers": ({"optimizer": "Adam"}, "call it once, after all optimizers"),
    "usage.mixed_scale": (
        {"optimizer": "Adam", "after": "unscale_"},
        "added to after unscale_, so they mix two scales",
    ),
    "usage.gradients_not_reset": (
        {"optimizer": "Adam", "after": "skipped"},
        "a skipped step, so its NaN or Inf remains",
    ),
    "usage.changed_while_scaled": ({"optimizer": "SGD"}, "changes gradients that are still scaled"),
    "usage.step_not_updated": ({}, "without scaler.update() between"),
    "usage.scaler_rebuilt": ({"optimizer": "Adam", "scale": 65536.0}, "its first scale, 65536 (2^16): create it once"),
    "usage.scaler_not_restored": ({"optimizer": "Adam", "scale": 65536.0}, "save and load scaler.state_dict()"),
    "usage.scaler_disabled": ({"device": "cuda"}, "made for cuda, is disabled while float16 is in use"),
    "usage.scaler_with_bf16": ({"scale": 1.0}, "remove it"),
    "usage.fp16_without_scaler": ({"optimizer": "SGD"}, "SGD steps on float16 gradients that were never scaled"),
    "usage.half_weights": (
        {"optimizer": "SGD", "count": 3, "of": 4, "dtypes": ["float16"], "refused": True},
        "updates 3 of 4 tensors in float16 without a float32 copy, where small updates are lost; GradScaler will",
    ),
    "usage.eps_below_dtype": ({"where": "AdamW", "eps": 1e-8, "dtype": "float16"}, "eps of AdamW, 1e-08, is zero in"),
    "usage.unsupported_op": (
        {"op": "mm", "module": "head", "dtypes": ["float16", "float32"]},
        "mm in head received float16",
    ),
    "usage.no_gradients": ({"optimizer": "SGD", "reason": "replaced"}, "SGD has parameters that are not the model's"),
    "usage.not_as_asked": (
        {"asked": "float16", "ran": "float32"},
        "float16 was asked for, but the loss is computed in float32",
    ),
    "usage.autocast_scope": ({"call": "backward()"}, "backward() runs inside autocast"),
    "kernels.sensitive": (
        {"op": "cos", "error": 0.14, "dtype": "bfloat16"},
        "the result of cos is 14 % off in bfloat16: use float32 there",
    ),
    "kernels.recomputed": (
        {"module": "blocks.1", "dtype": "bfloat16", "again": "float16"},
        "backward() recomputes blocks.1 in float16, and not in bfloat16: restore its autocast there",
    ),
    "kernels.round_trips": ({"dtype": "float16"}, "numbers are cast from float16 to float32 and straight back"),
    "usage.loss_in_half": ({"dtype": "bfloat16"}, "the loss is computed in bfloat16"),
    "usage.scheduler_ahead": ({"scheduler": "StepLR", "skipped": 1, "scheduled": 9}, "StepLR advanced 1 time of 9"),
    "usage.lopsided_step": (
        {"skipped": ["SGD of a"], "applied": ["SGD of b"]},
        "SGD of a skipped a step that SGD of b",
    ),
    "origin.found": (
        {"kind": "forward", "module": "blocks.1", "op": "Exp", "infs": 3, "absmax": 99.0, "confidence": "hooks"},
        "came from forward at blocks.1 (Exp) with 3 Inf, from at most 99; found by checking each module",
    ),
    "weights.nonfinite": ({"count": 2, "tensors": ["a.weight", "b"], "last_finite": 7}, "at step 7 they were finite"),
    "buffers.nonfinite": (
        {"count": 1, "tensors": ["norm.running_var"], "last_finite": 7},
        "1 buffer of the model contains",
    ),
    "moments.nonfinite": ({"tensors": ["a.exp_avg"]}, "state contains NaN or Inf: a.exp_avg"),
    "kernel.fallback": (
        {"flops_share": 0.25, "op": "mm", "module": "head", "reason": "misaligned", "shape": "8x64 x 64x100"},
        "25 % of the FLOPs, mm in head, has sizes that are not multiples of 8",
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_an_event_says_what_happened_and_what_to_do(name: str) -> None:
    data, words = TOLD[name]
    assert words in (sentence(Event(name, 3, 0, data)) or "")


def test_an_update_by_the_program_itself_is_no_step_of_the_optimizer() -> None:
    data = {"optimizer": "SGD", "scale": 8.0, "by_hand": True, "factor": 0.1}
    told = sentence(Event("usage.gradients_not_unscaled", 3, 0, data))
    assert "the weights of SGD are updated with gradients that are still multiplied by 8 (2^3)" == told


def test_every_mistake_that_is_documented_has_words() -> None:
    mistakes = {name for name in DOCUMENTED if name.startswith("usage.")} - {"usage.clip_before_unscale"}
    assert mistakes
    assert mistakes <= set(TOLD)


def test_old_copies_are_told_with_the_call() -> None:
    data = {"call": "SGD.step()", "stale_updates": 2}
    assert "used copies of the weights from before it" in (sentence(Event("usage.autocast_scope", 3, 0, data)) or "")


@pytest.mark.parametrize("name", TOLD)
@pytest.mark.parametrize("data", [{}, {"optimizer": None, "scale": "x", "tensors": 3, "absmax": "y", "share": "z"}])
def test_an_event_of_another_version_costs_no_report(name: str, data: dict[str, Any]) -> None:
    text = sentence(Event(name, 3, 0, data))
    assert text is None or isinstance(text, str)


def test_what_needs_nobody_has_no_words() -> None:
    assert sentence(Event("scaler.growth", 3, 0, {"from": 1.0, "to": 2.0})) is None
    odd = {"op": "mm", "module": "head", "reason": "misaligned"}
    for share, shape in ((0.02, "8x64 x 64x100"), (0.25, "8x64 x 64x10")):
        assert sentence(Event("kernel.fallback", 3, 0, {**odd, "flops_share": share, "shape": shape})) is None
    assert checkpoint("a.pt", (), ()) is None


@pytest.mark.parametrize(("environment", "count"), [({}, 0), ({"cuda": "12.8"}, 1)])
def test_sizes_that_cost_time_on_a_gpu_are_seen_on_a_gpu(environment: dict[str, str], count: int) -> None:
    stream, tally = Stream(), StreamSummary("s")
    stream.frames = [msgspec.structs.replace(stream.frames[0], environment=environment)]
    place = {"flops_share": 0.25, "op": "mm", "module": "head", "reason": "misaligned", "shape": "8x64 x 64x100"}
    for view in views(stream.good().event("kernel.fallback", **place).frames):
        tally.add(view)
    assert count == len(seen_in([tally]))


def test_a_checkpoint_says_what_it_lacks_and_who_can_get_at_it() -> None:
    faults = "checkpoint out/a.pt has no scaler, so a resumed run would differ; others on this machine can read it"
    assert f"{faults}: chmod 0600" == checkpoint("out/a.pt", ["scaler"], ["read"])


def test_a_checkpoint_in_several_files_of_one_folder_is_judged_as_one() -> None:
    stream, tally = Stream(), StreamSummary("s")
    stream.good()
    for name, missing in (("model.pt", ["optimizer", "scaler"]), ("optimizer.pt", ["weights", "scaler"])):
        stream.event("checkpoint.saved", path=f"out-1/{name}", missing=missing, exposed=[])
    for view in views(stream.frames):
        tally.add(view)
    (entry,) = seen_in([tally])
    assert "checkpoint out-1 has no scaler, so a resumed run would differ" == entry["said"]


def test_beside_a_complete_checkpoint_weights_alone_are_an_export() -> None:
    stream, tally = Stream(), StreamSummary("s")
    stream.good()
    stream.event("checkpoint.saved", path="out/last.pt", missing=[], exposed=[])
    stream.event("checkpoint.saved", path="export/weights.pt", missing=["optimizer"], exposed=[])
    for view in views(stream.frames):
        tally.add(view)
    assert [] == seen_in([tally])
