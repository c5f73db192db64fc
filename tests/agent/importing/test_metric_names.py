"""Which metric of a history becomes which column."""

from __future__ import annotations

import pytest

from ammeter.importing.history import ImportFailed
from ammeter.importing.metric_names import USUAL, columns_of
from ammeter.wire.frames import SCALARS

TOOLS = {
    "transformers": (
        {"train/loss": "loss", "eval/loss": "val_loss", "train/grad_norm": "grad_norm", "train/learning_rate": "lr"},
        ["train/epoch", "eval/runtime"],
    ),
    "Lightning": ({"train_loss_step": "loss", "val_loss": "val_loss", "grad_2.0_norm_total": "grad_norm"}, ["epoch"]),
    "Keras": ({"train/loss": "loss", "validation/loss": "val_loss"}, ["train/accuracy"]),
    "Megatron-LM": ({"lm loss": "loss", "loss-scale": "scale", "grad-norm": "grad_norm", "learning-rate": "lr"}, []),
    "fairseq": ({"train/loss": "loss", "valid/loss": "val_loss", "loss_scale": "scale", "gnorm": "grad_norm"}, ["ppl"]),
    "PyTorch's tutorials": ({"Loss/train": "loss", "Loss/val": "val_loss"}, ["Accuracy/train"]),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_the_usual_names_of_a_tool_are_known(tool: str) -> None:
    known, others = TOOLS[tool]
    found = columns_of([*known, *others], {})
    wanted = {metric: "optimizer_lr" if column == "lr" else column for metric, column in known.items()}
    assert wanted | {name: name for name in others} == found


def test_every_usual_name_leads_to_a_column_that_exists() -> None:
    assert set(USUAL) <= set(SCALARS)
    for column, names in USUAL.items():
        assert [column] * len(names) == [columns_of([name], {})[name] for name in names]


def test_of_several_candidates_the_likeliest_is_taken_and_the_others_keep_their_names() -> None:
    found = columns_of(["total_loss", "train/loss", "aux"], {})
    assert {"train/loss": "loss", "total_loss": "total_loss", "aux": "aux"} == found


def test_a_given_name_has_priority_over_usual_ones() -> None:
    found = columns_of(["loss", "my objective"], {"loss": "my objective"})
    assert {"my objective": "loss", "loss": "history/loss"} == found


def test_a_name_with_another_meaning_in_ammeter_gets_a_prefix() -> None:
    assert {"tokens": "history/tokens", "applied": "history/applied"} == columns_of(["tokens", "applied"], {})


def test_skipped_steps_are_known_only_from_a_given_name() -> None:
    assert "skipped" not in columns_of(["skipped", "found_inf", "overflow"], {}).values()
    assert {"overflow": "skipped"} == columns_of(["overflow"], {"skipped": "overflow"})


def test_names_of_an_ammeter_run_are_its_columns_without_those_of_tensors() -> None:
    names = ["applied", "skipped", "overhead_seconds", "tokens", "loss@gan.py:41", "grad.norm/fc.weight", "own"]
    assert {name: name for name in names if "grad.norm" not in name} == columns_of(names, {})


def test_a_given_name_that_the_history_lacks_is_refused_with_similar_ones() -> None:
    with pytest.raises(ImportFailed, match="the history has no metric 'train/los' for loss; it has train/loss"):
        columns_of(["train/loss", "lr"], {"loss": "train/los"})


def test_a_metric_is_given_for_one_column_only() -> None:
    with pytest.raises(ImportFailed, match="'loss' is given for loss and for val_loss; it can be one"):
        columns_of(["loss"], {"loss": "loss", "val_loss": "loss"})
