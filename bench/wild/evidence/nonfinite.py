"""Checks counts and places of steps with NaN or Inf."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.wild.evidence.numbers import Finding, count_of, exactly, number_of, span_of
from bench.wild.oracle import Row
from bench.wild.truth import Truth


def bad_gradients(finding: Finding, truth: Truth) -> Iterator[str]:
    first, last = span_of(finding)
    bad = [row for row in truth.rows(first, last) if truth.has_bad_gradients(row) and row.loss_is_finite]
    yield from exactly(f"bad steps from {first} to {last}", count_of(finding, "bad_steps"), len(bad))
    applied = [row for row in bad if not truth.is_skipped(row)]
    yield from exactly(f"bad steps applied from {first} to {last}", count_of(finding, "steps_applied"), len(applied))
    lowest = number_of(finding, "lowest_failed_scale")
    failed = {row.used_scale for row in truth.rows(first, truth.last_step) if truth.is_skipped(row)}
    if lowest is not None and lowest not in failed:  # also of a skipped step whose gradients were not read
        yield f"a lowest failed scale of {lowest:g}, which no bad step had"
    partly = [row for row in applied if truth.is_partly_skipped(row)]
    yield from exactly("bad steps partly applied", count_of(finding, "steps_partly_applied"), len(partly))
    worked = number_of(finding, "scale")
    before = [row.used_scale or 0.0 for row in truth.rows(0, last) if not truth.is_skipped(row)]
    if worked is not None and (worked not in {row.used_scale for row in bad} or worked > max(before, default=0.0)):
        yield f"a bad step at a scale of {worked:g} that had worked, which none was"
    then = number_of(finding, "next_applied_scale")
    if then is not None and then not in {row.used_scale for row in truth.rows(first, truth.last_step)}:
        yield f"a next scale of {then:g}, which no step had"
    yield from frontier(finding, truth, bad)


def frontier(finding: Finding, truth: Truth, bad: Sequence[Row]) -> Iterator[str]:
    """The tensors with NaN or Inf in their gradients, and those without."""
    tensors, finite = count_of(finding, "nonfinite_tensors"), count_of(finding, "finite_tensors")
    if not tensors or not bad:
        return
    known = {(len(names), row.tensors - len(names)) for row in bad for names in truth.bad_gradients(row)}
    if (tensors, finite) not in known:
        yield f"{tensors} non-finite and {finite} finite gradients, but there were {sorted(known)}"
    named = finding.get("tensor") if finding["verdict"] != "nonfinite-loss" else None
    if named and not any(named in names for row in bad for names in truth.bad_gradients(row)):
        yield f"a non-finite gradient of {named}, which was finite"


def bad_losses(finding: Finding, truth: Truth) -> Iterator[str]:
    first, last = span_of(finding)
    bad = [row for row in truth.rows(first, last) if not row.loss_is_finite]
    yield from exactly(f"non-finite losses from {first} to {last}", count_of(finding, "nonfinite_losses"), len(bad))
    tensors, known = (
        count_of(finding, "nonfinite_tensors"),
        {len(names) for row in bad for names in truth.bad_gradients(row)},
    )
    if tensors and tensors not in known:
        yield f"{tensors} non-finite gradients, but there were {sorted(known)}"
    skipped = [row for row in bad if truth.is_skipped(row)]
    applied, partly = len(bad) - len(skipped), count_of(finding, "steps_partly_applied")
    if "ended in this step" in finding["cause"]:  # an own skip in the last step leaves nothing that shows it
        skipped = [row for row in skipped if row not in truth.rows(truth.last_step, truth.last_step)]
    unknown = sum(truth.may_be_applied(row) for row in skipped)
    said_skipped, said_applied = (
        count_of(finding, "steps_skipped") - partly,
        count_of(finding, "steps_applied") + partly,
    )
    if not len(skipped) - unknown <= said_skipped <= len(skipped):
        yield f"{said_skipped} such steps skipped, but there were {len(skipped)}"
    if number_of(finding, "steps_applied") is not None and not applied <= said_applied <= applied + unknown:
        yield f"{said_applied} such steps applied, but there were {applied}"  # None: the text says that it is not known


def bad_weights(finding: Finding, truth: Truth) -> Iterator[str]:
    opened, first = finding["opened_step"], finding["first_step"]
    near = truth.rows(opened - 1, opened + 1)
    if (count := count_of(finding, "weights")) and near and count not in {len(row.bad_weights) for row in near}:
        yield f"{count} weights with NaN or Inf at step {opened}, but there were {len(near[-1].bad_weights)}"
    last = number_of(finding, "last_finite_step")
    if last is not None and any(row.bad_weights for row in truth.rows(int(last) - 1, int(last) - 1)):
        yield f"finite weights at step {last:.0f}, but some were not"
    deduced = count_of(finding, "skipped_losses_from")
    if deduced and any(row.loss_is_finite for row in truth.rows(deduced, deduced)):
        yield f"a loss that is not finite at step {deduced}, but it was"
    if count and not any(row.bad_weights for row in truth.rows(0, max(first, 0))) and first < opened - 1:
        yield f"weights with NaN or Inf since step {first}, but they were finite"


def bad_buffers(finding: Finding, truth: Truth) -> Iterator[str]:
    first = finding["first_step"]
    near = truth.rows(first - 1, first + 1)
    names = {name for row in near for name in row.bad_buffers}
    if near and finding.get("tensor") not in names:
        yield f"{finding.get('tensor')} with NaN or Inf at step {first}, but it was finite"
    if near and count_of(finding, "buffers") not in {len(row.bad_buffers) for row in near}:
        yield f"{count_of(finding, 'buffers')} buffers with NaN or Inf, but there were {len(near[-1].bad_buffers)}"
    for name, is_wrong in (
        ("last_finite_step", lambda row: bool(row.bad_buffers)),
        ("nonfinite_loss_at_step", lambda row: row.loss_is_finite),
        ("weights_read_finite", lambda row: bool(row.bad_weights)),
    ):
        step = number_of(finding, name)
        if step is not None and any(is_wrong(row) for row in truth.rows(int(step), int(step))):
            yield f"{name} {step:.0f}, which the recording contradicts"
