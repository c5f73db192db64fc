"""A step in which the program ends itself because of a NaN is reported; other ends are not."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.agent.training import Model, Seen, watching

LAST = 12
"""The step in which the programs end."""


class StoppedError(Exception):
    pass


Stop = Callable[[torch.Tensor], None]


def exits(loss: torch.Tensor) -> None:
    if not math.isfinite(float(loss.detach())):
        sys.exit(1)


def exits_well(loss: torch.Tensor) -> None:
    sys.exit(0)


def raises(loss: torch.Tensor) -> None:
    if not torch.isfinite(loss):
        raise StoppedError


def trained(folder: Path, *, stop: Stop = raises, spoiled: str = "", clip: bool = False, scaled: bool = False) -> Seen:
    """A program that ends in step LAST: by itself, by torch's error, or because its loop is over."""
    torch.manual_seed(0)
    model = Model()
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu", 2.0**8, enabled=scaled)
    with suppress(SystemExit, StoppedError, RuntimeError), watching(folder, model, optimizer, scaler) as seen:
        for step in range(LAST + 1):
            outputs = model(torch.randn(8, 12))
            loss = cross_entropy(outputs, torch.randint(3, (8,)))
            if step == LAST and spoiled == "loss":
                loss = loss + torch.log(outputs.relu() * 0).mean() * 0
            if step == LAST and spoiled == "gradients":
                loss = loss + torch.sqrt((outputs - outputs.detach()).abs()).sum()
            if step == LAST:
                stop(loss)
            optimizer.zero_grad()
            torch.autograd.backward(scaler.scale(loss))
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=clip)
            scaler.step(optimizer)
            scaler.update()
    return seen


@pytest.mark.parametrize("stop", [exits, raises])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_program_that_ends_itself_on_a_nan_has_a_finding_with_its_operator(
    stop: Stop, scaled: bool, tmp_path: Path
) -> None:
    seen = trained(tmp_path, stop=stop, spoiled="loss", scaled=scaled)
    (event,) = seen.events("step.unfinished")
    assert (LAST, False) == (event.data["step"], event.data["backward"])
    finding = seen.findings()["nonfinite-loss"]
    assert ("page", LAST, "Loss is NaN at step 12") == (finding.severity, finding.first_step, finding.title)
    assert f"The program ended in this step at {event.data['caller']}, without backward()" in finding.cause
    assert "LogBackward0" in finding.cause
    assert "test_unfinished_step.py" in event.data["caller"]


def test_a_clip_that_raises_an_error_on_gradients_has_a_finding(tmp_path: Path) -> None:
    finding = trained(tmp_path, stop=lambda _: None, spoiled="gradients", clip=True).findings()["nonfinite-gradient"]
    assert ("page", LAST) == (finding.severity, finding.first_step)
    assert "although the loss was finite" in finding.cause
    assert "The program ended in this step at " in finding.cause


def test_what_anomaly_detection_found_has_a_finding(tmp_path: Path) -> None:
    with torch.autograd.set_detect_anomaly(True), pytest.warns(UserWarning, match="Error detected"):
        seen = trained(tmp_path, stop=lambda _: None, spoiled="gradients")
    finding = seen.findings()["nonfinite-gradient"]
    assert "torch's anomaly detection found NaN in the gradients that AbsBackward0 returned" in finding.cause


@pytest.mark.parametrize(
    "options",
    [
        {"stop": exits_well},
        {"stop": raises},
        {"stop": lambda _: sys.exit("enough")},
        {"stop": lambda _: None, "spoiled": "gradients", "clip": True, "scaled": True},
    ],
    ids=["a good end", "the last step", "another reason", "an overflow beside a scaler"],
)
def test_other_ends_have_no_finding(options: dict[str, Any], tmp_path: Path) -> None:
    seen = trained(tmp_path, **options)
    assert [] == seen.events("step.unfinished")
    assert {} == seen.findings()


def test_a_nan_that_no_weight_made_is_no_loss(tmp_path: Path) -> None:
    other = torch.zeros(1, requires_grad=True)
    ratio = (other / 0 * 0).sum()
    seen = trained(tmp_path, stop=lambda _: sys.exit(1))
    assert math.isnan(float(ratio.detach()))
    assert [] == seen.events("step.unfinished")


def test_an_exit_that_the_program_catches_is_none(tmp_path: Path) -> None:
    def tries(loss: torch.Tensor) -> None:
        with suppress(SystemExit):
            sys.exit(1)

    assert [] == trained(tmp_path, stop=tries).events("step.unfinished")
