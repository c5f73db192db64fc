"""The launcher: what --fault, --guard and --list-faults accept, and that guards act."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

import ammeter
import broken
import train
from tests import forked
from tests.trainer.conftest import TRAINER, Seen, Trains

MISTAKES = {
    "--fault overflow-strom": "there is no fault 'overflow-strom'; did you mean 'overflow-storm'?",
    "--fault zzz": "there is no fault 'zzz'; use one of ",
    "--fault run-lost@soon": "the step of 'run-lost@soon' is no whole number; write run-lost@40, for instance.",
    "--fault clip-before-unscale --optimizer adamw": "which --optimizer adamw would hide; use sgd.",
    "--guard body": "invalid choice: 'body' (choose from",
}


@pytest.mark.parametrize(("given", "told"), MISTAKES.items(), ids=MISTAKES.keys())
def test_a_mistake_is_told_with_its_value_and_the_remedy(
    given: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        broken.read_arguments(given.split())
    assert 2 == refused.value.code
    assert told in capsys.readouterr().err


def test_a_fault_chooses_the_precision_optimizer_and_name_that_fit_it() -> None:
    _, options = broken.read_arguments(["--fault", "clip-before-unscale"])
    assert ("fp16", "sgd", "gpt-fp16-clip-before-unscale") == (options.precision, options.optimizer, options.name)
    _, options = broken.read_arguments(["--fault", "pointless-scaler", "--name", "mine"])
    assert ("bf16", "adamw", "mine") == (options.precision, options.optimizer, options.name)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_without_a_fault_it_is_the_trainer_itself(precision: str, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--tiny", "--steps", "4", "--precision", precision]
    whole = train.main(words)
    launched = Seen()
    monkeypatch.setattr(train, "ammeter", launched)
    assert whole.val_loss == broken.main(words).val_loss
    assert seen.losses == launched.losses
    assert seen.watched == launched.watched


def test_what_is_no_option_of_the_trainer_is_refused_by_it() -> None:
    command = [sys.executable, str(TRAINER / "train.py"), "--fault", "run-lost"]
    refused = forked.run(command, capture_output=True, timeout=60)
    assert 2 == refused.returncode
    assert "train.py: error: unrecognized arguments: --fault run-lost" in refused.stderr


def test_the_list_of_faults_tells_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as listed:
        broken.read_arguments(["--list-faults"])
    assert not listed.value.code
    assert "scale-collapse@20 (fp16)\n    From one step on every step is skipped" in capsys.readouterr().out


@pytest.fixture
def watched(tiny: Trains, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trains:
    """As tiny, and watched."""
    monkeypatch.delenv("AMMETER_DISABLE")
    monkeypatch.setenv("AMMETER_DIR", str(tmp_path / "journals"))
    return tiny


def test_the_scale_guard_keeps_the_steps_that_a_storm_would_cost(watched: Trains) -> None:
    storm = ("--steps", "40", "--fault", "overflow-storm")
    assert watched(*storm).applied < 20
    assert watched(*storm, "--guard", "scale").applied >= 36


def test_the_precision_guard_leaves_float16_where_activations_overflow_in_it(watched: Trains) -> None:
    loud = ("--steps", "30", "--fault", "activation-overflow@10")
    assert math.isnan(watched(*loud).train_loss)
    guarded = watched(*loud, "--guard", "precision")
    assert math.isfinite(guarded.train_loss)
    assert guarded.applied >= 26


def test_the_stop_guard_ends_a_poisoned_run_and_names_the_checkpoint_of_the_checkpoint_guard(watched: Trains) -> None:
    with pytest.raises(ammeter.Stopped, match=r"nonfinite-weights at step 20: .*Go back to /.*/step-00000015\.pt"):
        watched(
            *("--steps", "30", "--fault", "nonfinite-weights@20", "--checkpoint-every", "5"),
            *("--guard", "stop", "--guard", "checkpoint"),
        )


def test_guards_have_nothing_to_do_where_nothing_is_wrong(watched: Trains) -> None:
    asked = [word for name in ("scale", "precision", "stop") for word in ("--guard", name)]
    assert watched("--steps", "20").val_loss == watched("--steps", "20", *asked).val_loss
