"""scaler-disabled fires at the call that uses it, and takes the underflow that comes of it into its finding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ammeter.verdicts.causality import explain
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.training import line_of, watching
from tests.agent.verdicts.scaling import small, train


def disabled(device: str = "cuda", autocast: tuple[str, ...] = ("cpu",)) -> Stream:
    stream = Stream().autocast().event("scaler.seen", enabled=False, device=device, scale=65536.0).good()
    return stream.event("usage.scaler_disabled", caller="loop/train.py:31", device=device, autocast=list(autocast))


def test_a_scaler_for_another_device_is_named_with_both_devices() -> None:
    finding = findings(disabled())["scaler-disabled"]
    assert ("ticket", 0, 0) == (finding.severity, finding.first_step, finding.opened_step)
    assert "loop/train.py:31" == finding.caller
    assert "used at loop/train.py:31 is disabled, because it was created for cuda, while" in (finding.cause)
    assert "while the forward pass runs in float16 autocast on cpu" in finding.cause
    assert "torch.amp.GradScaler('cpu')" in finding.fix
    assert {"scaler_device": "cuda", "float16_on": ["cpu"]} == finding.evidence


def test_a_scaler_for_the_same_device_was_switched_off_by_hand() -> None:
    assert (
        "is disabled, because it was created with enabled=False" in findings(disabled("cpu"))["scaler-disabled"].cause
    )


def test_what_is_lost_without_a_scale_is_listed_inside() -> None:
    stream = disabled()
    for _ in range(12):
        stream.good(full=True)
    found = findings(stream)
    assert {"scaler-disabled", "no-loss-scaling"} == set(found)
    (cause,) = explain([("stream", finding) for finding in found.values()])
    assert "scaler-disabled" == cause.finding.verdict


def test_a_scaler_that_is_only_seen_to_be_disabled_is_none_of_its_business() -> None:
    stream = Stream().autocast("bfloat16").event("scaler.seen", enabled=False, device="cuda", scale=65536.0)
    for _ in range(20):
        stream.good()
    assert {} == findings(stream)
    assert {} == findings(warm())


def test_it_is_told_once() -> None:
    stream = disabled().good().event("usage.scaler_disabled", caller="b.py:1", device="cuda", autocast=["cpu"])
    finding = findings(stream)["scaler-disabled"]
    assert (1, "loop/train.py:31") == (finding.times, finding.caller)


def test_a_real_scaler_for_cuda_on_a_machine_without_is_found(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        scaler = torch.amp.GradScaler("cpu", enabled=False)
    else:
        with pytest.warns(UserWarning, match="CUDA is not available"):
            scaler = torch.amp.GradScaler("cuda")
    model, optimizer = small()
    with watching(tmp_path, model, optimizer, scaler) as seen:
        train(model, optimizer, scaler)
    finding = seen.findings()["scaler-disabled"]
    assert (finding.caller or "").endswith(line_of(train, "scaler.scale"))
    assert "float16 autocast on cpu" in finding.cause
