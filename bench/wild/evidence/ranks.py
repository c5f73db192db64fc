"""Checks what several ranks have, and the last step of a process."""

from __future__ import annotations

from collections.abc import Iterator

from bench.wild.evidence.numbers import Finding, has_norm, is_near, number_of, span_of
from bench.wild.truth import Truth


def weights_of_ranks(finding: Finding, truth: Truth) -> Iterator[str]:
    for name, should_be_equal in (("weights_equal_before_step", True), ("weights_differ_before_step", False)):
        step = number_of(finding, name)
        if step is None or step < 1:
            continue
        pair = truth.rows(int(step) - 1, int(step) - 1) + truth.other_rows(int(step) - 1, int(step) - 1)
        if len(pair) == 2 and (pair[0].weights == pair[1].weights) != should_be_equal:
            yield f"{name} {step:.0f}, but they were {'different' if should_be_equal else 'equal'}"
    both = truth.rows(*span_of(finding)) + truth.other_rows(*span_of(finding))
    for norm in (finding.get("evidence") or {}).get("grad_norms") or ():
        if both and not has_norm(both, float(norm)):
            yield f"a gradient norm of {norm:.4g} on a rank, which none had"
    for name in ("scale", "scale_of_the_others"):
        said = number_of(finding, name)
        if said is not None and both and not any(is_near(said, row.used_scale) for row in both):
            yield f"a {name} of {said:g}, which no rank had"


def losses_of_ranks(finding: Finding, truth: Truth) -> Iterator[str]:
    evidence = finding.get("evidence") or {}
    first = int(evidence.get("losses_at_step") or finding["first_step"])
    both = truth.rows(first, first) + truth.other_rows(first, first)
    for said in evidence.get("losses") or ():
        if both and not any(is_near(float(said), row.loss) for row in both):
            yield f"a loss of {said:.4g} at step {first}, which no rank had"


def last_step(finding: Finding, truth: Truth) -> Iterator[str]:
    """A killed program may have completed one more step than its recording has."""
    said = number_of(finding, "last_step")
    if said is not None and not 0 <= said - truth.last_step <= 1:
        yield f"a last step of {said:.0f}, but it was {truth.last_step}"
