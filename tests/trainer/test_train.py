from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import train
from tests import forked
from tests.trainer.conftest import TRAINER, Seen, Trains


def test_the_program_is_short_and_knows_no_fault() -> None:
    text = (TRAINER / "train.py").read_text()
    assert len(text.splitlines()) < 150
    assert [] == [word for word in ("fault", "broken", "guard", "inject") if word in text.lower()]


def test_no_part_of_the_program_imports_a_fault() -> None:
    program = (
        "import sys, train; print([name for name in sys.modules if name.partition('.')[0] in ('faults', 'broken')])"
    )
    run = forked.run([sys.executable, "-c", program], cwd=TRAINER, capture_output=True, timeout=60)
    assert "[]\n" == run.stdout, run.stderr


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_precision_learns(precision: str, tiny: Trains) -> None:
    run = tiny("--precision", precision, "--steps", "80")
    assert run.val_loss < 3.2 < math.log(128)
    assert run.applied >= 77  # a few skips while the scale finds its place


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_convolutional_network_learns_in_every_precision(precision: str, optimizer: str, tiny: Trains) -> None:
    run = tiny("--arch", "cnn", "--precision", precision, "--optimizer", optimizer, "--steps", "60")
    assert run.val_loss < 2.4 < math.log(16) - 0.3
    assert run.applied >= 57


def test_only_fp16_has_a_loss_scale(tiny: Trains, seen: Seen) -> None:
    assert 65536.0 == tiny("--precision", "fp16", "--steps", "2").scale
    assert tiny("--precision", "bf16", "--steps", "2").scale is None
    assert not seen.scaler.is_enabled()


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
def test_the_same_seed_gives_the_same_numbers_and_another_one_others(arch: str, tiny: Trains) -> None:
    words = ["--arch", arch, "--steps", "5"]
    first = tiny(*words).val_loss
    assert first == tiny(*words).val_loss
    assert first != tiny(*words, "--seed", "1").val_loss


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
def test_ammeter_does_not_change_a_bit(
    arch: str, tmp_path: Path, tiny: Trains, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--arch", arch, "--steps", "12", "--checkpoint"]
    tiny(*words, str(tmp_path / "bare.pt"))
    monkeypatch.delenv("AMMETER_DISABLE")
    monkeypatch.setenv("AMMETER_DIR", str(tmp_path / "journals"))
    tiny(*words, str(tmp_path / "watched.pt"))
    bare, watched = (torch.load(tmp_path / f"{name}.pt")["parts"]["model"] for name in ("bare", "watched"))
    assert all(torch.equal(bare[name], watched[name]) for name in bare)
    assert any((tmp_path / "journals").rglob("*"))


def test_ammeter_is_told_what_is_watched_and_every_loss(tiny: Trains, seen: Seen) -> None:
    tiny("--steps", "6", "--eval-every", "3", "--seed", "7")
    assert ("gpt-fp16", "reference") == (seen.watched["name"], seen.watched["project"])
    assert 7 == seen.watched["config"]["seed"]
    assert (6, 2, True) == (len(seen.losses), len(seen.val_losses), seen.closed)


def test_accumulated_batches_are_one_step(tiny: Trains, seen: Seen) -> None:
    assert 4 == tiny("--steps", "4", "--accumulate", "3").applied
    assert 4 == len(seen.losses)
    assert seen.losses[0] == pytest.approx(math.log(128), abs=0.1)


def test_a_skipped_step_does_not_use_up_the_schedule(
    tiny: Trains, seen: Seen, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny("--steps", "12", "--fault", "scale-collapse@5", "--log-every", "1")
    rates = [line.split("rate ")[1].split()[0] for line in capsys.readouterr().out.splitlines() if "rate" in line]
    assert len(set(rates[:5])) == 5
    assert {rates[4]} == set(rates[5:])


def test_the_gradients_are_unscaled_before_their_norm_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    order = []

    class Scaler:
        def __getattr__(self, name: str) -> object:
            return lambda *_: order.append(name)

    monkeypatch.setattr(train, "clip_grad_norm_", lambda *_: order.append("clip"))
    parts = SimpleNamespace(
        scaler=Scaler(), optimizer=None, model=torch.nn.Linear(1, 1), options=SimpleNamespace(clip=1.0)
    )
    train.Trainer.apply_gradients(parts)  # type: ignore[arg-type]
    assert ["unscale_", "clip", "step", "update"] == order
