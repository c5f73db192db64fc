"""What is said of runs with several losses, and what of the last step: in the report, by verdicts, in a post-mortem."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import ammeter
from ammeter.__main__ import main
from ammeter.report import diagnosis
from ammeter.wire.frames import Hello, Schema
from tests.agent.report.reporting import as_json, as_text, written
from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import findings

CRITIC, MAKER = "loss@gan.py:28", "loss@gan.py:42"


def gan() -> Stream:
    stream = Stream()
    stream.schema = msgspec.structs.replace(stream.schema, scalars=(*Schema().scalars, CRITIC, MAKER))
    (hello,) = stream.frames
    assert isinstance(hello, Hello)
    stream.frames = [msgspec.structs.replace(hello, schema=stream.schema)]
    return stream


def step(stream: Stream, critic: float = 1.4, maker: float = 0.7, **more: Any) -> Stream:
    scalars = {"applied": 2, "skipped": 0, CRITIC: critic, MAKER: maker, **more}
    return stream.step(**scalars)


def trained(steps: int = 30, **more: Any) -> Stream:
    stream = gan()
    for _ in range(steps):
        step(stream, **more)
    return stream


@pytest.mark.parametrize(("column", "place"), [("critic", "gan.py:28"), ("maker", "gan.py:42")])
def test_a_loss_that_is_not_finite_is_named(column: str, place: str) -> None:
    finding = findings(step(trained(), **{column: math.nan}))["nonfinite-loss"]
    assert f"Loss of {place} is NaN at step 30" == finding.title
    assert f"The training loss of {place} was NaN at step 30." in finding.cause


def test_losses_that_are_finite_close_it_again() -> None:
    stream = step(trained(), maker=math.inf)
    for _ in range(20):
        step(stream)
    finding = findings(stream)["nonfinite-loss"]
    assert "Loss of gan.py:42 is infinite at step 30" == finding.title
    assert not finding.active


def test_what_only_backward_knows_is_a_loss_to_verdicts() -> None:
    stream = Stream()
    for loss in (*[1.0] * 20, math.nan):
        stream.step(applied=1, skipped=0, loss_backward=loss)
    assert "Loss is NaN at step 20" == findings(stream)["nonfinite-loss"].title


def test_a_loss_that_stands_still_is_named() -> None:
    finding = findings(trained(220, update_ratio=1e-7, grad_norm=1.0))["stagnation"]
    assert "of 32 losses of gan.py:28 is 1.4 after 200 applied steps" in finding.cause


def test_the_report_shows_each_loss_by_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(step(step(trained(2), 1.2, 0.8), 1.0, math.nan).bye(), tmp_path)
    losses = as_json(capsys, tmp_path)["summary"]["losses"]
    assert [CRITIC, MAKER] == list(losses)
    reached = {"first": 1.4, "last": 1.0, "lowest": 1.0, "highest": 1.4, "last_step": 3, "read": 4}
    assert pytest.approx(reached) == losses[CRITIC]
    assert ("NaN", 3) == (losses[MAKER]["last"], losses[MAKER]["last_step"])
    text = as_text(capsys, tmp_path)
    assert "loss of gan.py:28 1.4 at first, 1 at last, lowest 1, highest 1.4" in text
    assert "loss of gan.py:42 0.7 at first, NaN at last (step 3), lowest 0.7, highest 0.8" in text
    assert "No loss was recorded" not in text


def test_a_gan_that_really_trains_has_its_losses_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    models = [torch.nn.Linear(3, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    run = ammeter.watch(models, optimizers, dir=tmp_path)
    for number in range(8):
        optimizers[0].zero_grad()
        (models[0](torch.ones(2, 3)).square().mean() * 0 + number).backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        (models[1](torch.ones(2, 3)).square().mean() * 0 + (math.nan if number == 7 else 2)).backward()
        optimizers[1].step()
    run.close()
    losses = list(as_json(capsys, tmp_path)["summary"]["losses"].values())
    assert [(0.0, 7.0, 8), (2.0, "NaN", 8)] == [(column["first"], column["last"], column["read"]) for column in losses]
    assert "NaN at last (step 7)" in as_text(capsys, tmp_path)
    (reported_finding,) = [
        reported
        for reported in diagnosis.diagnose(tmp_path / run.id).findings
        if reported.finding.verdict == "nonfinite-loss"
    ]
    assert "Loss of test_several_losses.py:" in reported_finding.finding.title


def test_at_last_is_the_last_step_and_what_was_not_read_in_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = Stream()
    for number in range(20):
        norm: dict[str, Any] = {"grad_norm": 1.0 + number} if number % 5 == 0 else {}
        stream.step(applied=1, skipped=0, loss=math.nan if number == 19 else 2.0 - number / 20, **norm)
    written(stream.bye(), tmp_path)
    summary = as_json(capsys, tmp_path)["summary"]
    assert ("NaN", 19, 20) == tuple(summary["loss"][name] for name in ("last", "last_step", "read"))
    assert (16.0, 15, 4) == tuple(summary["grad_norm"][name] for name in ("last", "last_step", "read"))
    text = as_text(capsys, tmp_path)
    assert "loss 2 at first, NaN at last (step 19), lowest 1.1, highest 2" in text
    assert "gradient norm 1 at first, 16 when it was read last (step 15; the last step is 19)" in text
    assert "highest 16, read in 4 of 20 steps" in text
    main(["report", str(tmp_path), "--postmortem"])
    document = capsys.readouterr().out
    assert "| loss | 2 at first, NaN at last (step 19), lowest 1.1, highest 2 |" in document


def test_a_loss_that_never_was_finite_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = Stream()
    for _ in range(3):
        stream.step(applied=1, skipped=0, loss=math.inf)
    written(stream.bye(), tmp_path)
    assert "loss Infinity at last (step 2)" in as_text(capsys, tmp_path)
