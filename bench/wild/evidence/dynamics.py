"""Checks norms and losses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from bench.wild.evidence.numbers import (
    Finding,
    at_most,
    count_of,
    has_norm,
    is_among,
    is_near,
    norms_of,
    number_of,
    span_of,
)
from bench.wild.oracle import Row
from bench.wild.truth import Truth

SLICED_FACTOR = 2.0
"""Ratio of a number from slices of the weights to that of all weights."""

LEVEL_STEPS = 64
"""Steps before an episode among which the loss before it must be."""


def spike(finding: Finding, truth: Truth) -> Iterator[str]:
    first, last = span_of(finding)
    norm, usual = number_of(finding, "grad_norm"), number_of(finding, "usual_grad_norm")
    rows = truth.rows(first, last)
    if norm is not None and not has_norm(rows, norm):
        yield f"a gradient norm of {norm:.4g} from step {first} to {last}, which none had"
    if usual is not None and not is_among([norm for row in truth.rows(0, first - 1) for norm in norms_of(row)], usual):
        yield f"a usual gradient norm of {usual:.4g} before step {first}, which is outside of all norms"
    yield from at_most("readings far off", count_of(finding, "readings_far_off"), len(rows))
    largest = {row.largest for row in rows} | {row.largest for row in truth.other_rows(first, last)}
    if finding.get("tensor") and rows and finding["tensor"] not in largest:
        yield f"{finding['tensor']} with the largest gradient norm, but it was {', '.join(sorted(largest))}"


def loss_at_first(finding: Finding, truth: Truth) -> Iterator[str]:
    yield from _loss_at(finding, "loss", truth.rows(finding["first_step"], finding["first_step"]))


def loss_at_opening(finding: Finding, truth: Truth) -> Iterator[str]:
    if number_of(finding, "largest_loss") is not None and "median" not in finding["cause"]:
        yield from _loss_at(finding, "loss", truth.rows(finding["opened_step"], finding["opened_step"]))


def _loss_at(finding: Finding, name: str, rows: Sequence[Row]) -> Iterator[str]:
    said = number_of(finding, name)
    for row in rows if said is not None else ():
        if not is_near(said or 0.0, row.loss):
            yield f"{name} {said:.4g} at step {row.step}, but it was {row.loss}"


def loss_before(finding: Finding, truth: Truth) -> Iterator[str]:
    said, first = number_of(finding, "loss_before"), finding["first_step"]
    before = [row.loss for row in truth.rows(first - LEVEL_STEPS, first - 1)]
    if said is not None and before and not is_among(before, said):
        yield f"a loss of {said:.4g} before step {first}, which is outside of all losses before"


def first_loss(finding: Finding, truth: Truth) -> Iterator[str]:
    yield from _loss_at(finding, "first_loss", truth.rows(0, 0))


def median_losses(finding: Finding, truth: Truth) -> Iterator[str]:
    """Checks the median of the first losses, of applied steps."""
    said, last = number_of(finding, "first_loss"), finding["first_step"]
    losses = [row.loss for row in truth.rows(0, last) if row.loss is not None and math.isfinite(row.loss)]
    if said is not None and losses and not is_near(said, median(losses)):
        yield f"a median of {said:.4g} until step {last}, but it was {median(losses):.4g}"


def largest_loss(finding: Finding, truth: Truth) -> Iterator[str]:
    first, last = span_of(finding)
    said, known = (
        number_of(finding, "largest_loss"),
        [row.loss for row in truth.rows(first, last) if row.loss is not None],
    )
    if said is not None and known and not is_near(said, max(known, key=abs)):
        yield f"a loss of as much as {said:.4g}, but from step {first} to {last} it was {max(known, key=abs):.4g}"


def divergence(finding: Finding, truth: Truth) -> Iterator[str]:
    first, last = span_of(finding)
    norm, before = number_of(finding, "grad_norm"), number_of(finding, "usual_grad_norm")
    if norm is not None and not has_norm(truth.rows(first, last), norm):
        yield f"a gradient norm of {norm:.4g} from step {first} to {last}, which none had"
    if norm is not None and before is not None and not has_norm(truth.rows(0, truth.last_step), before):
        yield f"a gradient norm of {before:.4g}, which none had"
    ratio = number_of(finding, "update_ratio")
    if ratio is not None and not _is_update(truth.rows(0, truth.last_step), ratio):
        yield f"a step that changed the weights by {ratio:.2g} of their norm, which none did"
    since = count_of(finding, "nonfinite_from")
    if since and any(row.loss_is_finite for row in truth.rows(since, since)):
        yield f"a loss that is not finite at step {since}, but it was"


def _is_update(rows: Sequence[Row], said: float) -> bool:
    """Whether a step changed the weights so. Ratios are read from slices of the weights."""
    known = [row.moved for row in rows if row.moved is not None]
    return not known or any(real / SLICED_FACTOR <= said <= real * SLICED_FACTOR for real in known)


def stagnation(finding: Finding, truth: Truth) -> Iterator[str]:
    opened = finding["opened_step"]
    rows, ratio, norm = truth.rows(0, opened), number_of(finding, "update_ratio"), number_of(finding, "grad_norm")
    yield from at_most("applied steps", count_of(finding, "applied_steps"), truth.applied(0, opened))
    if ratio and not _is_update(rows, ratio):
        yield f"steps that change the weights by {ratio:.2g} of their norm, which none did"
    if norm is not None and not has_norm(rows, norm):
        yield f"a gradient norm of {norm:.4g}, which none had"


def reversal(finding: Finding, truth: Truth) -> Iterator[str]:
    first, last = span_of(finding)
    for name, rows in (("cosine", truth.rows(first, last)), ("usual_cosine", truth.rows(0, first))):
        said, real = number_of(finding, name), [row.cosine for row in rows]
        if said is not None and any(value is not None for value in real) and not is_among(real, said):
            yield f"a {name} of {said:.2f}, which is outside of all cosines"


def zero_gradients(finding: Finding, truth: Truth) -> Iterator[str]:
    if (readings := count_of(finding, "zero_readings")) > 0:
        rows = truth.rows(*span_of(finding))
        yield from at_most("gradients of zero", readings, sum(row.zeros == row.elements for row in rows))
