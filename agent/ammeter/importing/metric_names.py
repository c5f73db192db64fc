"""Finds the columns of Ammeter among the metrics of a history, by usual names or by given ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from ammeter.importing.history import ImportFailed
from ammeter.wire.frames import SCALARS, STATS, is_loss

USUAL: dict[str, tuple[str, ...]] = {
    "loss": (
        *("loss", "train_loss", "training_loss", "loss_train", "loss_training", "train_loss_step", "train_total_loss"),
        *("total_loss", "train_batch_loss", "batch_loss", "lm_loss", "global_avg_loss", "loss_metrics_global_avg_loss"),
    ),
    "val_loss": (
        *("val_loss", "validation_loss", "valid_loss", "eval_loss", "dev_loss"),
        *("loss_val", "loss_validation", "loss_valid", "loss_eval", "loss_dev"),
    ),
    "scale": (
        *("scale", "loss_scale", "train_loss_scale", "grad_scale", "grad_scaler_scale", "scaler_scale", "amp_scale"),
    ),
    "grad_norm": (
        *("grad_norm", "train_grad_norm", "gradient_norm", "global_grad_norm", "total_grad_norm", "gnorm"),
        *("train_gnorm", "grad_2_0_norm_total"),
    ),
    "optimizer_lr": ("lr", "train_lr", "learning_rate", "train_learning_rate", "optimizer_lr"),
    "skipped": (),
}
"""Column -> metrics that are usually this, the likeliest first, in lower case and with _ for other characters.

They are those of the Trainer of transformers (train/loss, train/grad_norm), Lightning (train_loss_step,
grad_2.0_norm_total), Keras (loss, val_loss), Megatron-LM (lm loss, loss-scale), fairseq (gnorm, loss_scale) and
torchtitan. Whether a step was skipped is taken only from a given name: tools count it in different ways.
"""

OWN = {"applied", "skipped", "overhead_seconds"}
"""Columns that only a run of Ammeter has all of: then all of its names are those of columns."""

FOREIGN = "history/"
"""Begins the name of a metric that has another meaning as a column of Ammeter."""


def columns_of(metrics: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """Returns metric -> column.

    Args:
        metrics: The names in the history.
        given: Column -> metric, as the command line says it.

    Raises:
        ImportFailed: a given metric is not in the history, or is given for two columns.
    """
    for column, metric in given.items():
        if metric not in metrics:
            close = get_close_matches(metric, metrics, MAX_CLOSE) or list(metrics[:MAX_CLOSE])
            raise ImportFailed(f"the history has no metric {metric!r} for {column}; it has {', '.join(close)}, ...")
    chosen: dict[str, str] = {}
    for column, metric in given.items():
        if metric in chosen:
            raise ImportFailed(f"the metric {metric!r} is given for {chosen[metric]} and for {column}; it can be one")
        chosen[metric] = column
    if metrics and OWN <= set(metrics):
        return chosen | {name: name for name in metrics if name not in chosen and not _is_of_tensor(name)}
    for column, names in USUAL.items():
        usual = None if column in given else _usual(metrics, names)
        if usual is not None:
            chosen.setdefault(usual, column)
    return chosen | {name: _own_name(name) for name in metrics if name not in chosen}


MAX_CLOSE = 5
"""Names that an error suggests."""


def _usual(metrics: Sequence[str], names: Sequence[str]) -> str | None:
    plain: dict[str, str] = {}
    for metric in metrics:
        plain.setdefault(re.sub(r"[^a-z0-9]+", "_", metric.lower()).strip("_"), metric)
    return next((plain[name] for name in names if name in plain), None)


def _own_name(metric: str) -> str:
    return f"{FOREIGN}{metric}" if metric in SCALARS or is_loss(metric) else metric


def _is_of_tensor(name: str) -> bool:
    """Whether it is a statistic of one tensor, which has no column without the shape of the tensor."""
    return name.partition("/")[0] in STATS
