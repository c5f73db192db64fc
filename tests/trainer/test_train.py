from __future__ import annotations

import io
import math
import os
import pty
from pathlib import Path

import pytest
import torch

import train
from options import read_options
from show import Show
from tests.trainer.conftest import Seen, Trains


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
    assert seen.scaler is None


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
    model = torch.nn.Linear(1, 1)
    train.attempt(model, torch.optim.SGD(model.parameters()), Scaler(), 1.0)  # type: ignore[arg-type]
    assert ["unscale_", "clip", "step", "update"] == order


def test_the_learning_rate_rises_and_falls_to_a_tenth() -> None:
    rates = [train.warm_up_then_cosine(applied, 100) for applied in range(101)]
    assert 1.0 == max(rates) == rates[20]
    assert sorted(rates[:20]) == rates[:20]
    assert sorted(rates[20:], reverse=True) == rates[20:]
    assert 0.1 == pytest.approx(rates[100])
    assert 0.1 == pytest.approx(train.warm_up_then_cosine(500, 100))


def test_the_summary_says_how_it_went(tiny: Trains, capsys: pytest.CaptureFixture[str]) -> None:
    run = tiny("--steps", "8", "--fault", "scale-collapse@6")
    assert (8, 6, 16384.0) == (run.steps, run.applied, run.scale)
    last = capsys.readouterr().out
    assert "done: 8 steps, 6 applied, 2 skipped" in last
    assert f"validation loss {run.val_loss:.4f}, final scale 16384" in last


def test_in_a_pipe_progress_is_plain_lines(tiny: Trains, capsys: pytest.CaptureFixture[str]) -> None:
    tiny("--steps", "6", "--log-every", "2")
    out = capsys.readouterr().out
    assert ["step 2/6", "step 4/6", "step 6/6"] == [line[:8] for line in out.splitlines() if line.startswith("step")]
    assert "\r" not in out
    assert "\033" not in out


def test_on_a_terminal_progress_is_one_line_that_moves() -> None:
    main, terminal = pty.openpty()
    with os.fdopen(main, "rb", buffering=0) as screen, os.fdopen(terminal, "w") as stream:
        show = Show(10, 0, stream)
        show.numbers(5, "loss 2.5")
        show.bar(5)
        shown = screen.read(1000).decode()
    assert shown.startswith("\r")
    assert "█" * 12 + "·" * 12 + " 5/10  loss 2.5" in shown
    assert "\n" not in shown


def test_a_line_that_stays_is_a_whole_line() -> None:
    stream = io.StringIO()
    Show(10, 0, stream).line("hello")
    assert "hello\n" == stream.getvalue()


MISTAKES = {
    "--steps 0": "argument --steps: '0' will not do; use a whole number of 1 or more.",
    "--clip lots": "argument --clip: 'lots' is no number; write 0.5, for instance.",
    "--clip -1": "argument --clip: '-1' will not do; use a number above 0.",
    "--dropout 1": "argument --dropout: '1' will not do; use a number from 0 to below 1.",
    "--width 60 --heads 8": "--width is 60, which 8 heads cannot share; use a multiple of 8.",
    "--width 20 --tiny --heads 3": "--width is 20, which 3 heads cannot share; use a multiple of 3.",
    "--arch cnn --heads 4": "--heads is 4, but --arch cnn has no heads; leave it out.",
    "--pixels 16": "--pixels is 16, but --arch gpt has no pixels; leave it out.",
    "--arch vit": "argument --arch: invalid choice: 'vit'",
    "--resume": "--resume needs to know from where; add --checkpoint PATH.",
    "--resume --checkpoint /nowhere/run.pt": "--checkpoint is '/nowhere/run.pt', which is no file to resume from",
    "--fault overflow-strom": "there is no fault 'overflow-strom'; did you mean 'overflow-storm'?",
    "--fault zzz": "there is no fault 'zzz'; use one of ",
    "--fault run-lost@soon": "the step of 'run-lost@soon' is no whole number; write run-lost@40, for instance.",
    "--fault clip-before-unscale --optimizer adamw": "which --optimizer adamw would hide; use sgd.",
}


@pytest.mark.parametrize(("given", "told"), MISTAKES.items(), ids=MISTAKES.keys())
def test_a_mistake_is_told_with_its_value_and_the_remedy(
    given: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        read_options(given.split())
    assert 2 == refused.value.code
    assert told in capsys.readouterr().err


def test_a_device_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        read_options(["--device", "cuda"])
    assert "--device is 'cuda', but torch sees no CUDA device here; use --device cpu" in capsys.readouterr().err
    assert "cpu" == read_options(["--device", "auto"]).device


def test_tiny_only_changes_defaults() -> None:
    tiny = read_options(["--tiny", "--batch", "16"])
    assert (2, 16) == (tiny.layers, tiny.batch)


def test_each_network_has_its_own_sizes_and_says_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    gpt, cnn = (read_options(["--arch", arch]) for arch in ("gpt", "cnn"))
    assert (64, 0, 64) == (gpt.context, gpt.pixels, gpt.width)
    assert (0, 8, 32) == (cnn.context, cnn.pixels, cnn.width)
    assert ("gpt-fp16", "cnn-fp16") == (gpt.name, cnn.name)
    assert ({"context", "heads"}, {"pixels"}) == (
        gpt.recipe().keys() - cnn.recipe(),
        cnn.recipe().keys() - gpt.recipe(),
    )
    with pytest.raises(SystemExit):
        read_options(["--help"])
    helped = " ".join(capsys.readouterr().out.split())
    assert "(gpt 4, cnn 3)" in helped
    assert "on a side of an image (cnn 8)" in helped


def test_the_list_of_faults_tells_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as listed:
        read_options(["--list-faults"])
    assert not listed.value.code
    assert "scale-collapse@20 (fp16)\n    From one step on every step is skipped" in capsys.readouterr().out
