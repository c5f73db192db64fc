"""Computes the share of the gradient that is zero or subnormal in float16, for gradient-underflow."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ammeter.verdicts.framework.float16 import on_grid
from ammeter.wire.columns import Floats, Ints, View, measured

MIN_SUBNORMAL_SHARE = 0.5
"""Share of subnormal float16 elements among a tensor's nonzero elements from which it underflows. Subnormal means below
2^-14. Zeros alone prove nothing: embeddings, ReLU and masks produce zeros beside large elements, whereas underflow
removes the lower end of a distribution whose upper end is subnormal."""

MAX_LOSS_FALL = 100.0
"""Factor by which the loss has fallen at most when normal float16 gradients become zero without an underflow. An
underflow of all of them takes a factor of 2^10, from 2^-14 to 2^-24, of the scale or of the loss."""

Doubles = npt.NDArray[np.float64]


MIN_LOST_SHARE = 0.3
"""Share of all elements, without structural zeros, that are zero or subnormal in underflowing tensors. Measured on a
GPT with a scaled-down loss: up to 22 % the validation loss stays within 0.02 of the unharmed 3.11, at 70 % it is 3.32;
a healthy run has less than 1 %. Why small gradients matter: Micikevicius et al. 2018, Mixed Precision Training, 3.2."""

MIN_AVERAGED_SHARE = 0.5
"""The same for an average over ranks, in which elements of opposite signs also cancel."""


class Shares(NamedTuple):
    """For each sampled row, the lost share, the zero share and the worst tensor.

    of_average: the gradients are an average over ranks, which none of them computed in float16.
    """

    lost: Doubles
    zero: Doubles
    worst: Ints
    of_average: bool = False


def shares_of_ranks(rows: View, sampled: Ints, ranks: int) -> Shares:
    """Returns the shares of gradients that `ranks` ranks may have averaged."""
    if not _near(rows, sampled):
        return Shares(np.zeros(len(sampled)), np.zeros(len(sampled)), np.zeros(len(sampled), np.int64))
    shares = Shares(*lost_shares(rows, sampled))
    if ranks == 1 or (shares.lost >= MIN_LOST_SHARE).any():
        return shares
    averaged = Shares(*lost_shares(rows, sampled, ranks), of_average=True)
    return averaged if (averaged.lost >= MIN_AVERAGED_SHARE).any() else shares


def lost_shares(rows: View, sampled: Ints, ranks: int = 1) -> tuple[Doubles, Doubles, Ints]:
    """Returns, for each sampled row, the lost share, the zero share and the worst tensor.

    An all-zero tensor counts as lost only beside others that underflow, or if every tensor that was read is zero.
    `ranks` is the number of ranks that may have averaged the gradients.
    """
    numel = rows.numel[:, None].astype(np.float64)
    zeros = _counts(rows, "grad.zeros", sampled)
    subnormals = _counts(rows, "grad.subnormals", sampled)
    read = measured(rows.stat("grad.zeros")[:, sampled])
    nonzero = numel - zeros
    empty = read & (nonzero <= 0)
    underflowing = read & on_grid(rows, sampled, ranks) & (subnormals >= MIN_SUBNORMAL_SHARE * nonzero) & ~empty
    flushed = empty & (underflowing.any(axis=0) | (empty == read).all(axis=0))
    counted = underflowing | flushed
    structural = np.where(read & ~counted, zeros, 0.0)
    elements = np.maximum((np.where(read, numel, 0.0) - structural).sum(axis=0), 1.0)
    lost = np.where(counted, zeros + subnormals, 0.0)
    zero = np.where(counted, zeros, 0.0).sum(axis=0)
    return lost.sum(axis=0) / elements, zero / elements, lost.argmax(axis=0)


def is_structural(before: tuple[float, float], after: tuple[float, float]) -> bool:
    """Whether all gradients became zero for another reason than an underflow, such as a loss that is constant.

    Args:
        before: Scale and |loss| of the last reading, in which gradients were normal float16 numbers; a scale of -1 if
            they were not.
        after: Those of the reading in which all are zero. A loss is NaN if it was not read.
    """
    scale, loss = before
    return 0 < scale <= after[0] and loss <= MAX_LOSS_FALL * after[1]


def _near(rows: View, sampled: Ints) -> bool:
    """Whether any tensor almost underflows or is almost all zero.

    In a healthy run no tensor does.
    """
    numel = rows.numel[:, None].astype(np.float32)
    zeros, subnormals = (_columns(rows, name, sampled) for name in ("grad.zeros", "grad.subnormals"))
    return bool((subnormals >= 0.9 * MIN_SUBNORMAL_SHARE * (numel - zeros)).any() or (zeros >= 0.9 * numel).any())


def _columns(rows: View, stat: str, sampled: Ints) -> Floats:
    values = rows.stat(stat)
    return values if len(sampled) == len(rows) else values[:, sampled]


def _counts(rows: View, stat: str, sampled: Ints) -> Doubles:
    counts = rows.stat(stat)[:, sampled].astype(np.float64)
    return np.where(np.isnan(counts), 0.0, counts)
