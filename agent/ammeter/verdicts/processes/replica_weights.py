"""Compares the weights of ranks that train one model, for ranks-disagree.

The checksums show whether the weights are equal before a step; the norms of the gradients, which are read more often,
show at which step that ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Severity
from ammeter.verdicts.framework.lifecycle import Lifecycle
from ammeter.verdicts.framework.rank_alignment import AlignedSteps
from ammeter.wire.columns import Mask, measured

MAX_CHECKSUM_DIFFERENCE = 1e-5
"""Relative difference below which checksums are equal. Replicas have equal bits on equal hardware; other hardware
rounds differently, by 1e-7. A single update with another gradient changes weights by 1e-4 and more."""

MAX_STEADY_DIFFERENCE = 5e-7
"""The same for ranks whose weights had equal bits after they had moved: 8 units in the last place. Other rounding would
have shown there first, and grows by a fraction between two readings."""

MAX_NORM_DIFFERENCE = 1e-4
"""Relative difference below which the norm of all gradients is the same on two ranks. The results of an all-reduce are
equal to the bit, and other kernels sum them up with 1e-6. Ranks that train independently differ by percents."""

MIN_DIFFERENT_READINGS = 2
"""Readings in a row with different weights, so that a single odd one proves nothing."""

MIN_SEPARATE_STEPS = 40
"""Steps since the last equal weights after which ranks are reported that do not share their gradients. Programs that
average weights instead of gradients do so every few to 32 steps, from the start or after a phase with an all-reduce."""

MIN_SHARED_NORMS = 3
"""Steps with equal gradient norms that show that ranks share their gradients."""

MAX_LISTED_RANKS = 8
"""Maximum number of ranks in the text; a list of hundreds is useless."""


class Parting(msgspec.Struct, frozen=True, array_like=True):
    """The values of Weights when the verdict opened. Weights that become equal again later do not change its text.

    Attributes:
        norm_step: -1 if norms do not show where the weights became different.
        is_exact: whether the weights at `equal` had equal bits, and not only nearly equal checksums.
    """

    equal: int = -1
    has_moved: bool = False
    since: int = -1
    norm_step: int = -1
    norms: tuple[float, float] = (0.0, 0.0)
    is_exact: bool = True


class Weights(msgspec.Struct, frozen=True, array_like=True):
    """State of the comparison."""

    opened: Lifecycle = Lifecycle()
    equal: int = -1
    """The last step with equal weights; -1 if there was none. `checksum`: theirs at the first such step."""
    checksum: float = 0.0
    has_moved: bool = False
    """Whether the weights were equal after they had changed, so that the ranks made the same updates."""
    rejoined: bool = False
    """Whether different weights became equal again, as in programs that average weights now and then."""
    different: int = 0
    since: int = -1
    """`different`: readings in a row with different weights, the first of them at `since`."""
    shared_norms: int = 0
    norm_step: int = -1
    """First step since `equal` at which the norms of the gradients differ; `norms`: the lowest and the highest."""
    norms: tuple[float, float] = (0.0, 0.0)
    differing: tuple[int, ...] = ()
    """The differing ranks, or all if there is no majority: the first MAX_LISTED_RANKS of `differing_count`."""
    differing_count: int = 0
    ranks: int = 0
    checksums: tuple[float, float] = (0.0, 0.0)
    """The lowest and the highest checksum when the verdict opened."""
    parting: Parting = Parting()
    balance: int = 0
    """Steps with equal norms of gradients minus those with different ones, since the last reading."""
    shares: bool = False
    """Whether most norms were equal between two readings with different weights."""
    has_equal_bits: bool = False
    """Whether the weights at `equal` had equal bits."""


class Norms(NamedTuple):
    """Norms of the gradients at some steps: the lowest and the highest of the ranks, and their relation.

    Norms are divided by the loss scale, unless the ranks have different ones.
    """

    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    are_equal: Mask
    differ: Mask


def norms_of(aligned: AlignedSteps, *, are_scaled: bool = True) -> Norms:
    """Returns the norms of these steps. Steps that a rank did not read are neither equal nor different."""
    norms = aligned.column("grad_norm").astype(np.float64)
    divisors = np.ones(len(aligned))
    if are_scaled:
        scales = aligned.column("scale").astype(np.float64)
        scales = np.where(np.isnan(scales), 1.0, scales)
        norms, divisors = norms * scales, np.where((scales == scales[0]).all(axis=0) & (scales[0] > 0), scales[0], 1.0)
    with np.errstate(invalid="ignore"):
        low, high = norms.min(axis=0), norms.max(axis=0)
        known, differ = np.isfinite(high) & (low > 0), high - low > MAX_NORM_DIFFERENCE * high
    return Norms(low / divisors, high / divisors, known & ~differ, known & differ)


def compare(state: Weights, aligned: AlignedSteps) -> Weights:
    """Compares the weights at the next common steps. Ranks with parts of a model or other models are left out."""
    if aligned.sharded or not aligned.same_tensors:
        return state
    checksums, fingerprints = aligned.column("weights_checksum"), aligned.column("weights_fingerprint")
    norms = norms_of(aligned)
    begin = 0
    for at in np.flatnonzero(measured(checksums).all(axis=0)).tolist():
        state = _gradients(state, aligned, norms, begin, at)
        found, bits = checksums[:, at].tolist(), fingerprints[:, at]
        is_exact = bool((bits == bits[0]).all()) if measured(bits).all() else min(found) == max(found)
        state = _reading(state, aligned.ranks, int(aligned.steps[at]), found, is_exact=is_exact)
        begin = at
    return _gradients(state, aligned, norms, begin, len(aligned))


def _gradients(state: Weights, aligned: AlignedSteps, norms: Norms, begin: int, end: int) -> Weights:
    """Counts equal norms of gradients from begin to end, and finds the first step with different ones."""
    if state.different and not state.shares and not state.rejoined:
        balance = int(norms.are_equal[begin:end].sum()) - int(norms.differ[begin:end].sum())
        state = replace(state, balance=state.balance + balance) if balance else state
    if state.shared_norms < MIN_SHARED_NORMS:
        count = int(norms.are_equal[begin:end].sum())
        state = replace(state, shared_norms=min(MIN_SHARED_NORMS, state.shared_norms + count)) if count else state
    differ = norms.differ[begin:end]
    if state.norm_step >= 0 or not differ.any():
        return state
    at = begin + int(np.argmax(differ))
    return replace(state, norm_step=int(aligned.steps[at]), norms=(float(norms.low[at]), float(norms.high[at])))


def _reading(state: Weights, ranks: Sequence[int], step: int, checksums: Sequence[float], *, is_exact: bool) -> Weights:
    """Compares one reading.

    Args:
        is_exact: whether the weights of all ranks have equal bits. Agents before 0.2 record only checksums.
    """
    low, high = min(checksums), max(checksums)
    is_steady = state.has_moved and state.has_equal_bits
    if are_equal(checksums, MAX_STEADY_DIFFERENCE if is_steady else MAX_CHECKSUM_DIFFERENCE):
        if is_steady and low == high and not is_exact:
            return state  # a difference may begin here that is too small for the checksum
        return replace(_equal(state, step, low), has_equal_bits=is_exact)
    since, shares = state.since if state.different else step, state.shares or state.balance > 0
    state = replace(state, different=state.different + 1, since=since, balance=0, shares=shares)
    if state.opened.active:
        return replace(state, opened=state.opened.until(step))
    if state.different < MIN_DIFFERENT_READINGS or state.rejoined or not _are_replicas(state, step):
        return state
    usual = max(checksums, key=checksums.count)
    has_majority = 2 * checksums.count(usual) > len(checksums)
    differing = [rank for rank, own in zip(ranks, checksums, strict=True) if own != usual or not has_majority]
    first = state.norm_step if _is_seen_in_norms(state) else state.since
    return replace(
        state,
        opened=state.opened.at(first, step),
        parting=_parting(state),
        differing=tuple(differing[:MAX_LISTED_RANKS]),
        differing_count=len(differing),
        ranks=len(ranks),
        checksums=(low, high),
    )


def _equal(state: Weights, step: int, checksum: float) -> Weights:
    has_moved = state.has_moved or (state.equal >= 0 and checksum != state.checksum)
    first, rejoined = checksum if state.equal < 0 else state.checksum, state.rejoined or state.different > 0
    state = replace(state, equal=step, checksum=first, has_moved=has_moved, rejoined=rejoined)
    return replace(state, opened=state.opened.over(), different=0, balance=0, norm_step=-1)


def _are_replicas(state: Weights, step: int) -> bool:
    """Whether the weights should be equal.

    They should if the ranks share gradients, or did so and have been apart for a long time. Norms that were never equal
    are of gradients before their reduction, and prove nothing.
    """
    if state.equal < 0:
        return state.shared_norms >= MIN_SHARED_NORMS and state.norm_step < 0
    shows_in_norms = state.shared_norms >= MIN_SHARED_NORMS and not state.shares
    return (state.has_moved and not shows_in_norms) or step - state.equal >= MIN_SEPARATE_STEPS


def _is_seen_in_norms(state: Weights) -> bool:
    return 0 <= state.norm_step < state.since and (state.shared_norms >= MIN_SHARED_NORMS or not state.has_moved)


def _parting(state: Weights) -> Parting:
    norm_step = state.norm_step if _is_seen_in_norms(state) else -1
    return Parting(
        state.equal, state.has_moved, state.since, norm_step, state.norms, state.has_equal_bits or state.equal < 0
    )


def are_equal(checksums: Sequence[float], tolerance: float = MAX_CHECKSUM_DIFFERENCE) -> bool:
    """Whether checksums of several ranks show equal weights, within this relative tolerance."""
    low, high = min(checksums), max(checksums)
    return high - low <= tolerance * max(abs(low), abs(high))


def severity(state: Weights) -> Severity:
    """Returns `page` for ranks that share gradients.

    Others may train separate models intentionally, or average their weights at times.
    """
    return "page" if state.parting.equal < 0 or (state.parting.has_moved and state.shares) else "ticket"


def title(state: Weights) -> str:
    if state.parting.equal >= 0 and not state.parting.has_moved:
        return "The ranks no longer have the same weights"
    if state.differing_count == state.ranks:
        return "The weights of the ranks differ"
    subject = wording.sentence(ranks_text(state.differing, state.differing_count))
    return f"{subject} {'has' if state.differing_count == 1 else 'have'} other weights than the other ranks"


def cause(state: Weights) -> str:
    """Returns when the weights became different, and what that means."""
    parting, gradients = state.parting, ""
    if parting.norm_step >= 0:
        low, high = (f"{norm:.6g}" for norm in parting.norms)
        gradients = f" At step {parting.norm_step}, the norms of their gradients differ: {low} to {high}."
    if parting.equal < 0:
        return (
            f"The {state.ranks} ranks share their gradients, but not their weights: before step {parting.since} the"
            " weights differ. The ranks were started from different weights, so each applies gradients that were"
            " computed for other weights."
        )
    nearly = f"differed by less than {MAX_CHECKSUM_DIFFERENCE:.0e} of their checksum"
    agreed, then = ("were equal", " and different") if parting.is_exact else (nearly, ", and more")
    before = f"The weights of the {state.ranks} ranks {agreed} before step {parting.equal}"
    if not parting.has_moved:
        until = "later comparison" if state.opened.active else f"comparison until step {state.opened.last}"
        return (
            f"{before}, but before step {parting.since} and in every {until} they differ.{gradients}"
            " Some gradients are not averaged over the ranks, or are changed on single ranks after that; ranks that"
            " average their weights rarely look the same between two averages."
        )
    apart = f"{before}{then} before step {parting.since} and later.{gradients}"
    if not state.shares:
        changed = "they are not averaged, or are changed on single ranks after that"
        return f"{apart} No equal gradients were read since then: {changed}."
    return f"{apart} Some update was not the same on all ranks; equal gradients do not make the weights equal again."


def fix(state: Weights) -> str:
    if state.parting.equal < 0:
        return (
            "Start all ranks from the weights of rank 0: wrap the model in DistributedDataParallel, or call"
            " dist.broadcast(parameter, 0) for each parameter before the first step, or load the same checkpoint."
        )
    reduce = (
        "Average the gradients of all ranks in every step, after backward() and before the clip: wrap the model in"
        " DistributedDataParallel and call the wrapper, or call dist.all_reduce(parameter.grad) for the gradient itself"
        " of each parameter, on every rank, and divide by the number of ranks."
    )
    if severity(state) == "ticket":
        return (
            f"{reduce} If the ranks average their weights at times, or train separate models, intentionally, silence"
            " this verdict for the run with AMMETER_SILENCE=ranks-disagree."
        )
    return (
        f"{reduce} Do not change gradients, weights or the optimizer on single ranks after that. Then restore"
        f" {wording.earlier(max(1, state.opened.first))} on all ranks."
    )


def evidence(state: Weights) -> dict[str, Any]:
    equal = state.parting.equal if state.parting.equal >= 0 else None
    return {
        "ranks": list(state.differing),
        "of": state.ranks,
        "weights_equal_before_step": equal if state.parting.is_exact else None,
        **({} if state.parting.is_exact else {"weights_nearly_equal_before_step": equal}),
        "weights_differ_before_step": state.parting.since,
        "checksums": list(state.checksums),
        "grad_norms": list(state.parting.norms) if state.parting.norm_step >= 0 else None,
    }


def ranks_text(differing: Sequence[int], count: int) -> str:
    """Returns 'rank 2', or 'ranks 1, 2 and 9 more' of `count` ranks."""
    if count == 1:
        return f"rank {differing[0]}"
    more = f" and {count - len(differing)} more" if count > len(differing) else ""
    return f"ranks {', '.join(map(str, differing))}{more}"
