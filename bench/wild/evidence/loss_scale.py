"""Checks the loss scale, and steps that it skips."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from bench.wild.evidence.nonfinite import frontier
from bench.wild.evidence.numbers import (
    SHARE_TOLERANCE,
    Finding,
    at_most,
    count_of,
    exactly,
    is_near,
    number_of,
    span_of,
)
from bench.wild.oracle import Row
from bench.wild.truth import Truth

_LEVEL = re.compile(r"At ([\d.e+-]+)(?: \(2\^-?\d+\))? (\d+) of (\d+) steps were skipped, so")

INVERSE_INFINITE = 2.0**-128
"""A loss scale up to this one has no finite inverse in float32."""


def collapse(finding: Finding, truth: Truth) -> Iterator[str]:
    first, last = span_of(finding)
    skipped = [row for row in truth.rows(first, last) if truth.is_partly_skipped(row)]
    yield from exactly(f"steps skipped from {first} to {last}", count_of(finding, "skipped_steps"), len(skipped))
    partly = sum(not truth.is_skipped(row) for row in skipped)
    yield from exactly("skipped steps that one optimizer applied", count_of(finding, "steps_applied"), partly)
    for name, step in (("scale_from", first), ("scale_to", last)):
        yield from _scale_at(finding, name, truth.rows(step, step))
    lowest, known = number_of(finding, "lowest_failed_scale"), [row.used_scale for row in skipped]
    if lowest is not None and known and None not in known and lowest != min(known, key=lambda scale: scale or 0.0):
        yield f"a lowest failed scale of {lowest:g}, but it was {min(known, key=lambda scale: scale or 0.0):g}"
    again = number_of(finding, "applied_again_at_step")
    if again is not None:
        rows = truth.rows(int(again), int(again))
        if any(truth.is_skipped(row) for row in rows):
            yield f"an applied step {again:.0f}, but it was skipped"
        yield from _scale_at(finding, "applied_again_at_scale", rows)
    bad = number_of(finding, "weights_nonfinite_at_step")
    if bad is not None and not any(row.bad_weights for row in truth.rows(int(bad) - 1, int(bad) + 1)):
        yield f"weights with NaN or Inf at step {bad:.0f}, but they were finite"
    yield from frontier(finding, truth, [row for row in skipped if truth.has_bad_gradients(row)])


def scale_at_first(finding: Finding, truth: Truth) -> Iterator[str]:
    """The loss scale at which an episode began."""
    yield from _scale_at(finding, "loss_scale", truth.rows(finding["first_step"], finding["first_step"]))


def _scale_at(finding: Finding, name: str, rows: Sequence[Row]) -> Iterator[str]:
    said = number_of(finding, name)
    for row in rows if said is not None else ():
        if row.used_scale is not None and not is_near(said or 0.0, row.used_scale):
            yield f"{name} {said:g} at step {row.step}, but it was {row.used_scale:g}"


def storm(finding: Finding, truth: Truth) -> Iterator[str]:
    first, last = span_of(finding)
    rows = truth.rows(first, last)
    skipped = [row for row in rows if truth.is_partly_skipped(row)]
    said, applied = count_of(finding, "steps_skipped"), count_of(finding, "steps_applied")
    yield from exactly(f"steps skipped from {first} to {last}", said, len(skipped))
    yield from at_most("steps applied", applied, truth.applied(first, truth.last_step))
    highest, known = (
        number_of(finding, "highest_scale"),
        [row.used_scale for row in skipped if row.used_scale is not None],
    )
    if highest is not None and known and not is_near(highest, max(known)):
        yield f"skipped steps at scales of up to {highest:g}, but it was {max(known):g}"
    for scale, bad, of in _LEVEL.findall(finding["cause"]):
        level = [row for row in truth.rows(first, truth.last_step) if is_near(float(scale), row.used_scale)]
        yield from at_most(f"steps skipped at {scale}", int(bad), sum(map(truth.is_partly_skipped, level)))
        yield from at_most(f"steps at {scale}", int(of), len(level))
    interval = count_of(finding, "growth_interval")
    streaks = _growth_streaks(truth, truth.rows(0, truth.last_step))
    if interval and number_of(finding, "growth_factor") and interval not in streaks:
        yield f"a growth after every {interval} applied steps, but it was after {sorted(streaks)}"
    share = number_of(finding, "skipped_share")
    if share is not None and abs(share - said / max(1, said + applied)) > SHARE_TOLERANCE:
        yield f"a share of {share:.2f} skipped steps, but they were {said} of {said + applied}"
    factor = number_of(finding, "growth_factor")
    after = [row.used_scale for row in truth.rows(first, truth.last_step)]
    rises = [later / earlier for earlier, later in pairwise(after) if earlier and later]
    if factor is not None and not any(is_near(factor, rise) for rise in rises):
        yield f"a scale that grows {factor:g}-fold, which it never did"


def _growth_streaks(truth: Truth, rows: Sequence[Row]) -> set[int]:
    """The numbers of applied steps in a row after which the scale grew."""
    streaks, streak = set(), 0
    for row, following in pairwise(rows):
        streak = 0 if truth.is_partly_skipped(row) else streak + 1
        if row.used_scale and following.used_scale and following.used_scale > row.used_scale:
            streaks.add(streak)
            streak = 0
    return streaks


def underflow(finding: Finding, truth: Truth) -> Iterator[str]:
    last = finding.get("last_step", -1)
    for row in truth.rows(last, last):
        if not row.elements:
            continue
        lost, zeros = (row.zeros + row.subnormals) / row.elements, row.zeros / row.elements
        for name, most in (("lost_share", lost), ("zero_share", zeros)):
            said = number_of(finding, name)
            if said is not None and said > most + SHARE_TOLERANCE:
                yield f"a {name} of {said:.2f} at step {last}, but it was {most:.2f}"
        yield from _scale_at(finding, "scale", [row])
    scales = {row.used_scale for row in truth.rows(0, last)}
    if (finding.get("evidence") or {}).get("scale_never_changed") and len(scales) > 1:
        yield f"one loss scale in all steps, but there were {len(scales)}"


def without_inverse(finding: Finding, truth: Truth) -> Iterator[str]:
    first, last = span_of(finding)
    yield from _scale_at(finding, "scale", truth.rows(first, first))
    yield from _scale_at(finding, "scale_before", truth.rows(first - 1, first - 1))
    applied = [
        row
        for row in truth.rows(first, last)
        if not truth.is_skipped(row) and row.used_scale is not None and row.used_scale <= INVERSE_INFINITE
    ]
    yield from exactly("such steps applied", count_of(finding, "steps_applied"), len(applied))


def without_scaler(finding: Finding, truth: Truth) -> Iterator[str]:
    said = count_of(finding, "steps_without_scaler")
    yield from exactly("steps without a scaler", said, truth.applied(*span_of(finding)))


def scales_of_call(finding: Finding, truth: Truth) -> Iterator[str]:
    """Scales at one call of the program: in effect in a step near it."""
    steps = finding["first_step"] - 1, finding["opened_step"] + 1
    known = {scale for row in truth.rows(*steps) for scale in (row.used_scale, row.scale) if scale is not None}
    for name in ("scale", "scale_before"):
        said = number_of(finding, name)
        if said is not None and known and not any(is_near(said, scale) for scale in known):
            yield f"a {name} of {said:g} near step {finding['opened_step']}, but there were {sorted(known)}"


def schedule(finding: Finding, truth: Truth) -> Iterator[str]:
    skipped = sum(truth.is_partly_skipped(row) for row in truth.rows(0, truth.last_step))
    yield from at_most("moves for skipped steps", count_of(finding, "moves_for_skipped_steps"), skipped)
    yield from at_most("moves", count_of(finding, "moves"), truth.last_step + 2)


def lopsided(finding: Finding, truth: Truth) -> Iterator[str]:
    first, opened = finding["first_step"], finding["opened_step"]
    real = sum(truth.is_partly_skipped(row) and not truth.is_skipped(row) for row in truth.rows(first + 1, opened))
    yield from at_most("steps of one optimizer alone", count_of(finding, "lopsided_steps"), real)
