"""What guards are worth on the trainer's faults: shown in full by bench/zoo/guards, here that they act at all."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import ammeter
from tests.trainer.conftest import Trains


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


def test_a_guard_that_there_is_not_is_refused(tiny: Trains, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        tiny("--guard", "body")
    assert "invalid choice: 'body' (choose from" in capsys.readouterr().err
