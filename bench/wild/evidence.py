"""Checks the numbers of a finding's evidence against the oracle: norms, losses, scales, counts and shares.

A number that the text calls read, such as "in 3 readings", may be lower than the truth; any other one may not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from bench.wild.oracle import Row
from bench.wild.truth import Truth

Finding = dict[str, Any]
Check = Callable[[Finding, Truth], Iterator[str]]

TOLERANCE = 0.02
"""Relative difference of a number from the recorded one: texts have three digits."""

SHARE_TOLERANCE = 0.02
"""Difference of two shares."""

SLICED_FACTOR = 2.0
"""Ratio of a number from slices of the weights to that of all weights."""

LEVEL_STEPS = 64
"""Steps before an episode among which the loss before it must be."""

_LEVEL = re.compile(r"At ([\d.e+-]+)(?: \(2\^-?\d+\))? (\d+) of (\d+) steps were skipped, so")

INVERSE_INFINITE = 2.0**-128
"""A loss scale up to this one has no finite inverse in float32."""


def wrong_numbers(finding: Finding, truth: Truth, *, losses: bool = True) -> Iterator[str]:
    """The numbers of a finding's evidence that the oracle contradicts.

    Args:
        finding: The finding, as the report prints it.
        truth: What is known of the run and of the finding's rank.
        losses: Whether the recording has the whole loss of each step.
    """
    for check in CHECKS.get(finding["verdict"], ()):
        yield from check(finding, truth)
    if losses:
        for check in LOSS_CHECKS.get(finding["verdict"], ()):
            yield from check(finding, truth)


def is_near(said: float, real: float | None, tolerance: float = TOLERANCE) -> bool:
    return real is not None and abs(said - real) <= tolerance * max(abs(said), abs(real))


def _number(finding: Finding, name: str) -> float | None:
    """A finite number of the evidence; None for anything else."""
    value = (finding.get("evidence") or {}).get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _count(finding: Finding, name: str) -> int:
    return int(_number(finding, name) or 0)


def _span(finding: Finding) -> tuple[int, int]:
    first: int = finding["first_step"]
    last: int = finding.get("last_step", first)
    return first, last


def _norms(row: Row) -> list[float]:
    """All norms of a step's gradients: as they were, and divided by the scale."""
    known = [norm for norm in row.norms if norm is not None]
    return known + [norm / row.used_scale for norm in known if row.used_scale]


def _has_norm(rows: Sequence[Row], said: float) -> bool:
    return any(is_near(said, norm) for row in rows for norm in _norms(row))


def _among(values: Sequence[float | None], said: float) -> bool:
    """Whether a number is in the range of the known values."""
    known = [value for value in values if value is not None]
    margin = TOLERANCE * abs(said)
    return bool(known) and min(known) - margin <= said <= max(known) + margin


def _exactly(what: str, said: int, real: int) -> Iterator[str]:
    if said != real:
        yield f"{said} {what}, but there were {real}"


def _at_most(what: str, said: int, real: int) -> Iterator[str]:
    if said > real:
        yield f"{said} {what}, but there were {real}"


# Norms and losses


def _spike(finding: Finding, truth: Truth) -> Iterator[str]:
    first, last = _span(finding)
    norm, usual = _number(finding, "grad_norm"), _number(finding, "usual_grad_norm")
    rows = truth.rows(first, last)
    if norm is not None and not _has_norm(rows, norm):
        yield f"a gradient norm of {norm:.4g} from step {first} to {last}, which none had"
    if usual is not None and not _among([norm for row in truth.rows(0, first - 1) for norm in _norms(row)], usual):
        yield f"a usual gradient norm of {usual:.4g} before step {first}, which is outside of all norms"
    yield from _at_most("readings far off", _count(finding, "readings_far_off"), len(rows))
    largest = {row.largest for row in rows} | {row.largest for row in truth.other_rows(first, last)}
    if finding.get("tensor") and rows and finding["tensor"] not in largest:
        yield f"{finding['tensor']} with the largest gradient norm, but it was {', '.join(sorted(largest))}"


def _loss_at_first(finding: Finding, truth: Truth) -> Iterator[str]:
    yield from _loss_at(finding, "loss", truth.rows(finding["first_step"], finding["first_step"]))


def _loss_at_opening(finding: Finding, truth: Truth) -> Iterator[str]:
    if _number(finding, "largest_loss") is not None and "median" not in finding["cause"]:
        yield from _loss_at(finding, "loss", truth.rows(finding["opened_step"], finding["opened_step"]))


def _loss_at(finding: Finding, name: str, rows: Sequence[Row]) -> Iterator[str]:
    said = _number(finding, name)
    for row in rows if said is not None else ():
        if not is_near(said or 0.0, row.loss):
            yield f"{name} {said:.4g} at step {row.step}, but it was {row.loss}"


def _loss_before(finding: Finding, truth: Truth) -> Iterator[str]:
    said, first = _number(finding, "loss_before"), finding["first_step"]
    before = [row.loss for row in truth.rows(first - LEVEL_STEPS, first - 1)]
    if said is not None and before and not _among(before, said):
        yield f"a loss of {said:.4g} before step {first}, which is outside of all losses before"


def _first_loss(finding: Finding, truth: Truth) -> Iterator[str]:
    yield from _loss_at(finding, "first_loss", truth.rows(0, 0))


def _largest_loss(finding: Finding, truth: Truth) -> Iterator[str]:
    first, last = _span(finding)
    said, known = (
        _number(finding, "largest_loss"),
        [row.loss for row in truth.rows(first, last) if row.loss is not None],
    )
    if said is not None and known and not is_near(said, max(known, key=abs)):
        yield f"a loss of as much as {said:.4g}, but from step {first} to {last} it was {max(known, key=abs):.4g}"


def _diverged(finding: Finding, truth: Truth) -> Iterator[str]:
    first, last = _span(finding)
    norm, before = _number(finding, "grad_norm"), _number(finding, "usual_grad_norm")
    if norm is not None and not _has_norm(truth.rows(first, last), norm):
        yield f"a gradient norm of {norm:.4g} from step {first} to {last}, which none had"
    if norm is not None and before is not None and not _has_norm(truth.rows(0, truth.last_step), before):
        yield f"a gradient norm of {before:.4g}, which none had"
    ratio = _number(finding, "update_ratio")
    if ratio is not None and not _is_update(truth.rows(0, truth.last_step), ratio):
        yield f"a step that changed the weights by {ratio:.2g} of their norm, which none did"
    since = _count(finding, "nonfinite_from")
    if since and any(row.loss_is_finite for row in truth.rows(since, since)):
        yield f"a loss that is not finite at step {since}, but it was"


def _is_update(rows: Sequence[Row], said: float) -> bool:
    """Whether a step changed the weights so. Ratios are read from slices of the weights."""
    known = [row.moved for row in rows if row.moved is not None]
    return not known or any(real / SLICED_FACTOR <= said <= real * SLICED_FACTOR for real in known)


def _stagnation(finding: Finding, truth: Truth) -> Iterator[str]:
    opened = finding["opened_step"]
    rows, ratio, norm = truth.rows(0, opened), _number(finding, "update_ratio"), _number(finding, "grad_norm")
    yield from _at_most("applied steps", _count(finding, "applied_steps"), truth.applied(0, opened))
    if ratio and not _is_update(rows, ratio):
        yield f"steps that change the weights by {ratio:.2g} of their norm, which none did"
    if norm is not None and not _has_norm(rows, norm):
        yield f"a gradient norm of {norm:.4g}, which none had"


def _reversal(finding: Finding, truth: Truth) -> Iterator[str]:
    first, last = _span(finding)
    for name, rows in (("cosine", truth.rows(first, last)), ("usual_cosine", truth.rows(0, first))):
        said, real = _number(finding, name), [row.cosine for row in rows]
        if said is not None and any(value is not None for value in real) and not _among(real, said):
            yield f"a {name} of {said:.2f}, which is outside of all cosines"


def _no_gradients(finding: Finding, truth: Truth) -> Iterator[str]:
    if (readings := _count(finding, "zero_readings")) > 0:
        rows = truth.rows(*_span(finding))
        yield from _at_most("gradients of zero", readings, sum(row.zeros == row.elements for row in rows))


# Steps with NaN or Inf


def _bad_gradients(finding: Finding, truth: Truth) -> Iterator[str]:
    first, last = _span(finding)
    bad = [row for row in truth.rows(first, last) if truth.has_bad_gradients(row) and row.loss_is_finite]
    yield from _exactly(f"bad steps from {first} to {last}", _count(finding, "bad_steps"), len(bad))
    applied = [row for row in bad if not truth.is_skipped(row)]
    yield from _exactly(f"bad steps applied from {first} to {last}", _count(finding, "steps_applied"), len(applied))
    lowest = _number(finding, "lowest_failed_scale")
    if lowest is not None and lowest not in {row.used_scale for row in bad}:
        yield f"a lowest failed scale of {lowest:g}, which no bad step had"
    partly = [row for row in applied if truth.is_partly_skipped(row)]
    yield from _exactly("bad steps partly applied", _count(finding, "steps_partly_applied"), len(partly))
    worked = _number(finding, "scale")
    before = [row.used_scale or 0.0 for row in truth.rows(0, last) if not truth.is_skipped(row)]
    if worked is not None and (worked not in {row.used_scale for row in bad} or worked > max(before, default=0.0)):
        yield f"a bad step at a scale of {worked:g} that had worked, which none was"
    then = _number(finding, "next_applied_scale")
    if then is not None and then not in {row.used_scale for row in truth.rows(first, truth.last_step)}:
        yield f"a next scale of {then:g}, which no step had"
    yield from _frontier(finding, truth, bad)


def _frontier(finding: Finding, truth: Truth, bad: Sequence[Row]) -> Iterator[str]:
    """The tensors with NaN or Inf in their gradients, and those without."""
    tensors, finite = _count(finding, "nonfinite_tensors"), _count(finding, "finite_tensors")
    if not tensors or not bad:
        return
    known = {(len(names), row.tensors - len(names)) for row in bad for names in truth.bad_gradients(row)}
    if (tensors, finite) not in known:
        yield f"{tensors} non-finite and {finite} finite gradients, but there were {sorted(known)}"
    named = finding.get("tensor") if finding["verdict"] != "nonfinite-loss" else None
    if named and not any(named in names for row in bad for names in truth.bad_gradients(row)):
        yield f"a non-finite gradient of {named}, which was finite"


def _bad_losses(finding: Finding, truth: Truth) -> Iterator[str]:
    first, last = _span(finding)
    bad = [row for row in truth.rows(first, last) if not row.loss_is_finite]
    yield from _exactly(f"non-finite losses from {first} to {last}", _count(finding, "nonfinite_losses"), len(bad))
    tensors, known = (
        _count(finding, "nonfinite_tensors"),
        {len(names) for row in bad for names in truth.bad_gradients(row)},
    )
    if tensors and tensors not in known:
        yield f"{tensors} non-finite gradients, but there were {sorted(known)}"
    skipped = [row for row in bad if truth.is_skipped(row)]
    partly = _count(finding, "steps_partly_applied")
    yield from _exactly("such steps skipped", _count(finding, "steps_skipped") - partly, len(skipped))
    yield from _exactly("such steps applied", _count(finding, "steps_applied") + partly, len(bad) - len(skipped))


def _bad_weights(finding: Finding, truth: Truth) -> Iterator[str]:
    opened, first = finding["opened_step"], finding["first_step"]
    near = truth.rows(opened - 1, opened + 1)
    if (count := _count(finding, "weights")) and near and count not in {len(row.bad_weights) for row in near}:
        yield f"{count} weights with NaN or Inf at step {opened}, but there were {len(near[-1].bad_weights)}"
    last = _number(finding, "last_finite_step")
    if last is not None and any(row.bad_weights for row in truth.rows(int(last) - 1, int(last) - 1)):
        yield f"finite weights at step {last:.0f}, but some were not"
    deduced = _count(finding, "skipped_losses_from")
    if deduced and any(row.loss_is_finite for row in truth.rows(deduced, deduced)):
        yield f"a loss that is not finite at step {deduced}, but it was"
    if count and not any(row.bad_weights for row in truth.rows(0, max(first, 0))) and first < opened - 1:
        yield f"weights with NaN or Inf since step {first}, but they were finite"


def _bad_buffers(finding: Finding, truth: Truth) -> Iterator[str]:
    first = finding["first_step"]
    near = truth.rows(first - 1, first + 1)
    names = {name for row in near for name in row.bad_buffers}
    if near and finding.get("tensor") not in names:
        yield f"{finding.get('tensor')} with NaN or Inf at step {first}, but it was finite"
    if near and _count(finding, "buffers") not in {len(row.bad_buffers) for row in near}:
        yield f"{_count(finding, 'buffers')} buffers with NaN or Inf, but there were {len(near[-1].bad_buffers)}"
    for name, is_wrong in (
        ("last_finite_step", lambda row: bool(row.bad_buffers)),
        ("nonfinite_loss_at_step", lambda row: row.loss_is_finite),
        ("weights_read_finite", lambda row: bool(row.bad_weights)),
    ):
        step = _number(finding, name)
        if step is not None and any(is_wrong(row) for row in truth.rows(int(step), int(step))):
            yield f"{name} {step:.0f}, which the recording contradicts"


# The loss scale


def _collapse(finding: Finding, truth: Truth) -> Iterator[str]:
    first, last = _span(finding)
    skipped = [row for row in truth.rows(first, last) if truth.is_partly_skipped(row)]
    yield from _exactly(f"steps skipped from {first} to {last}", _count(finding, "skipped_steps"), len(skipped))
    for name, step in (("scale_from", first), ("scale_to", last)):
        yield from _scale_at(finding, name, truth.rows(step, step))
    lowest, known = _number(finding, "lowest_failed_scale"), [row.used_scale for row in skipped]
    if lowest is not None and known and None not in known and lowest != min(known, key=lambda scale: scale or 0.0):
        yield f"a lowest failed scale of {lowest:g}, but it was {min(known, key=lambda scale: scale or 0.0):g}"
    again = _number(finding, "applied_again_at_step")
    if again is not None:
        rows = truth.rows(int(again), int(again))
        if any(truth.is_skipped(row) for row in rows):
            yield f"an applied step {again:.0f}, but it was skipped"
        yield from _scale_at(finding, "applied_again_at_scale", rows)
    bad = _number(finding, "weights_nonfinite_at_step")
    if bad is not None and not any(row.bad_weights for row in truth.rows(int(bad) - 1, int(bad) + 1)):
        yield f"weights with NaN or Inf at step {bad:.0f}, but they were finite"
    yield from _frontier(finding, truth, [row for row in skipped if truth.has_bad_gradients(row)])


def _scale_at(finding: Finding, name: str, rows: Sequence[Row]) -> Iterator[str]:
    said = _number(finding, name)
    for row in rows if said is not None else ():
        if row.used_scale is not None and not is_near(said or 0.0, row.used_scale):
            yield f"{name} {said:g} at step {row.step}, but it was {row.used_scale:g}"


def _storm(finding: Finding, truth: Truth) -> Iterator[str]:
    first, last = _span(finding)
    rows = truth.rows(first, last)
    skipped = [row for row in rows if truth.is_partly_skipped(row)]
    said, applied = _count(finding, "steps_skipped"), _count(finding, "steps_applied")
    yield from _exactly(f"steps skipped from {first} to {last}", said, len(skipped))
    yield from _at_most("steps applied", applied, truth.applied(first, truth.last_step))
    highest, known = (
        _number(finding, "highest_scale"),
        [row.used_scale for row in skipped if row.used_scale is not None],
    )
    if highest is not None and known and not is_near(highest, max(known)):
        yield f"skipped steps at scales of up to {highest:g}, but it was {max(known):g}"
    for scale, bad, of in _LEVEL.findall(finding["cause"]):
        level = [row for row in truth.rows(first, truth.last_step) if is_near(float(scale), row.used_scale)]
        yield from _at_most(f"steps skipped at {scale}", int(bad), sum(map(truth.is_partly_skipped, level)))
        yield from _at_most(f"steps at {scale}", int(of), len(level))
    factor = _number(finding, "growth_factor")
    after = [row.used_scale for row in truth.rows(first, truth.last_step)]
    rises = [later / earlier for earlier, later in pairwise(after) if earlier and later]
    if factor is not None and not any(is_near(factor, rise) for rise in rises):
        yield f"a scale that grows {factor:g}-fold, which it never did"


def _underflow(finding: Finding, truth: Truth) -> Iterator[str]:
    last = finding.get("last_step", -1)
    for row in truth.rows(last, last):
        if not row.elements:
            continue
        lost, zeros = (row.zeros + row.subnormals) / row.elements, row.zeros / row.elements
        for name, most in (("lost_share", lost), ("zero_share", zeros)):
            said = _number(finding, name)
            if said is not None and said > most + SHARE_TOLERANCE:
                yield f"a {name} of {said:.2f} at step {last}, but it was {most:.2f}"
        yield from _scale_at(finding, "scale", [row])
    scales = {row.used_scale for row in truth.rows(0, last)}
    if (finding.get("evidence") or {}).get("scale_never_changed") and len(scales) > 1:
        yield f"one loss scale in all steps, but there were {len(scales)}"


def _without_inverse(finding: Finding, truth: Truth) -> Iterator[str]:
    first, last = _span(finding)
    yield from _scale_at(finding, "scale", truth.rows(first, first))
    yield from _scale_at(finding, "scale_before", truth.rows(first - 1, first - 1))
    applied = [
        row
        for row in truth.rows(first, last)
        if not truth.is_skipped(row) and row.used_scale is not None and row.used_scale <= INVERSE_INFINITE
    ]
    yield from _exactly("such steps applied", _count(finding, "steps_applied"), len(applied))


def _without_scaler(finding: Finding, truth: Truth) -> Iterator[str]:
    said = _count(finding, "steps_without_scaler")
    yield from _exactly("steps without a scaler", said, truth.applied(*_span(finding)))


def _scales_of_call(finding: Finding, truth: Truth) -> Iterator[str]:
    """Scales at one call of the program: in effect in a step near it."""
    steps = finding["first_step"] - 1, finding["opened_step"] + 1
    known = {scale for row in truth.rows(*steps) for scale in (row.used_scale, row.scale) if scale is not None}
    for name in ("scale", "scale_before"):
        said = _number(finding, name)
        if said is not None and known and not any(is_near(said, scale) for scale in known):
            yield f"a {name} of {said:g} near step {finding['opened_step']}, but there were {sorted(known)}"


def _schedule(finding: Finding, truth: Truth) -> Iterator[str]:
    skipped = sum(truth.is_partly_skipped(row) for row in truth.rows(0, truth.last_step))
    yield from _at_most("moves for skipped steps", _count(finding, "moves_for_skipped_steps"), skipped)
    yield from _at_most("moves", _count(finding, "moves"), truth.last_step + 2)


def _lopsided(finding: Finding, truth: Truth) -> Iterator[str]:
    first, opened = finding["first_step"], finding["opened_step"]
    real = sum(truth.is_partly_skipped(row) and not truth.is_skipped(row) for row in truth.rows(first + 1, opened))
    yield from _at_most("steps of one optimizer alone", _count(finding, "lopsided_steps"), real)


# Ranks


def _ranks(finding: Finding, truth: Truth) -> Iterator[str]:
    for name, should_be_equal in (("weights_equal_before_step", True), ("weights_differ_before_step", False)):
        step = _number(finding, name)
        if step is None or step < 1:
            continue
        pair = truth.rows(int(step) - 1, int(step) - 1) + truth.other_rows(int(step) - 1, int(step) - 1)
        if len(pair) == 2 and (pair[0].weights == pair[1].weights) != should_be_equal:
            yield f"{name} {step:.0f}, but they were {'different' if should_be_equal else 'equal'}"
    both = truth.rows(*_span(finding)) + truth.other_rows(*_span(finding))
    for norm in (finding.get("evidence") or {}).get("grad_norms") or ():
        if both and not _has_norm(both, float(norm)):
            yield f"a gradient norm of {norm:.4g} on a rank, which none had"
    for name in ("scale", "scale_of_the_others"):
        said = _number(finding, name)
        if said is not None and both and not any(is_near(said, row.used_scale) for row in both):
            yield f"a {name} of {said:g}, which no rank had"


def _losses_of_ranks(finding: Finding, truth: Truth) -> Iterator[str]:
    first = finding["first_step"]
    both = truth.rows(first, first) + truth.other_rows(first, first)
    for said in (finding.get("evidence") or {}).get("losses") or ():
        if both and not any(is_near(float(said), row.loss) for row in both):
            yield f"a loss of {said:.4g} at step {first}, which no rank had"


def _last_step(finding: Finding, truth: Truth) -> Iterator[str]:
    """A killed program may have completed one more step than its recording has."""
    said = _number(finding, "last_step")
    if said is not None and not 0 <= said - truth.last_step <= 1:
        yield f"a last step of {said:.0f}, but it was {truth.last_step}"


CHECKS: dict[str, tuple[Check, ...]] = {
    "gradient-spike": (_spike,),
    "diverged": (_diverged,),
    "stagnation": (_stagnation,),
    "sign-flip": (_reversal,),
    "no-gradients": (_no_gradients,),
    "nonfinite-gradient": (_bad_gradients,),
    "nonfinite-weights": (_bad_weights,),
    "poisoned-buffers": (_bad_buffers,),
    "scale-collapse": (_collapse,),
    "overflow-storm": (_storm,),
    "gradient-underflow": (_underflow,),
    "scale-underflowed": (_without_inverse,),
    "no-loss-scaling": (_without_scaler,),
    "scheduler-ahead": (_schedule,),
    "lopsided-step": (_lopsided,),
    "ranks-disagree": (_ranks,),
    "half-reduction": (_losses_of_ranks,),
    "run-lost": (_last_step,),
    **dict.fromkeys(
        (
            "clip-before-unscale",
            "loss-not-scaled",
            "gradients-not-unscaled",
            "mixed-scale-gradients",
            "update-between-optimizers",
            "gradients-not-reset",
            "pointless-scaler",
            "scaler-rebuilt",
            "scaler-not-restored",
            "not-as-asked",
        ),
        (_scales_of_call,),
    ),
}
"""Verdict -> checks of the numbers in its evidence."""

LOSS_CHECKS: dict[str, tuple[Check, ...]] = {
    "gradient-spike": (_loss_at_first, _loss_before),
    "diverged": (_first_loss, _loss_before, _loss_at_opening, _largest_loss),
    "stagnation": (_first_loss,),
    "sign-flip": (_loss_before,),
    "nonfinite-loss": (_bad_losses,),
}
"""The same of numbers that need the whole loss of each step."""
