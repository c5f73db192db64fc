"""Checks what a finding says against the oracle: steps, counts, scales, names, the loss and the weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from bench.wild.evidence import wrong_numbers
from bench.wild.oracle import own_name
from bench.wild.truth import Truth

_SCALE = re.compile(r"([\d.]+(?:e[+-]?\d+)?) \(2\^(-?\d+)\)")
_SKIPPED = re.compile(r"skipped (\d+) steps from (\d+) to (\d+)")
_OF = re.compile(r"(\d+) of (\d+) steps were skipped")
_BAD = re.compile(r"(?:In (\d+) steps from (\d+) to (\d+)|At step (\d+)) the gradients contained NaN or Inf")
_APPLIED = re.compile(r"(\d+) such steps? (?:was|were) applied|The step was applied")
_STEP = re.compile(r"\bsteps? (\d+)\b")
_LATER_MODEL = re.compile(r"^model\d+\.")
"""What precedes the names of a model that a program builds after its first one, as when a cell runs again."""

_LINE = re.compile(r"\btrain\.py:(\d+)")
_BAD_WEIGHT = re.compile(r"weights contain(?:ed)? NaN or Inf[^.]*?, (\S+) among them")
_BAD_LOSS = re.compile(r"^Loss\b.* is (?:NaN|infinite) at step (\d+)")
_BAD_LOSSES = re.compile(r"The training loss\b[^.]*? was \S+ (\d+) times since step (\d+)")
_LATER_BAD_LOSS = re.compile(r"was NaN or infinite at step (\d+)")
_LOSS_OF_STEP = re.compile(r"\(step (\d+): ([-\d.e+]+)\)")
_LOSS_OF_SPIKE = re.compile(r"At step (\d+) the norm .* The loss\b[^.]*? was ([-\d.e+]+) at that step")
_ONLY_RANK = re.compile(r"rank (\d+) is the only one of")
_FOLLOWED = re.compile(r"Rank (\d+) followed at step (\d+)")
_GRAD_SCALER = re.compile(r"\bGradScaler (skipped|often skips|checks|raises|rejects|does not skip)")
_HALF = re.compile(r"(?<!b)float16|\.half\(|_half\b|\b(?:fp16|16-mixed)\b")

LOSS_TOLERANCE = 0.02
"""Relative difference of a quoted loss from the recorded one: texts have three digits, and ranks have their own."""

OF_THE_CODE = ("cast-churn", "activation-casts", "misaligned-matmul", "stale-stack")
"""Verdicts on casts, shapes and releases. The twin has them too, and no number shows their beginning."""

FAR_RATIO = 3.0
"""Ratio of a loss that has left its level to all losses before."""


def wrong_statements(finding: dict[str, Any], truth: Truth, *, steps: bool, losses: bool = True) -> list[str]:
    """The statements of a finding that the oracle contradicts.

    Args:
        finding: The finding, as the report prints it.
        truth: What is known of the run.
        steps: Whether its steps are those of the recording.
        losses: Whether the recording has the whole loss of each step, and not that of a micro-batch.
    """
    checks: list[Callable[[dict[str, Any], Truth], Iterator[str]]] = [
        _names,
        _scales,
        _weights,
        _bad_weight,
        _dtype,
        _grad_scaler,
        _trial,
    ]
    losses = losses and not truth.is_of_other_loss(_text(finding))
    if steps and truth.recording.rows:
        checks += [_first_step, _last_step, _quoted_steps, _skips, _applied, _gradients, _other_ranks]
        checks += [_loss, _loss_values] if losses else []
    wrong = [statement for check in checks for statement in check(finding, truth)]
    if steps and truth.recording.rows and "evidence" in finding:
        wrong += wrong_numbers(finding, truth, losses=losses)
    return [f"{finding['verdict']}: {statement}" for statement in wrong]


def _text(finding: dict[str, Any]) -> str:
    return f"{finding.get('title') or ''}. {finding['cause']}"


def _first_step(finding: dict[str, Any], truth: Truth) -> Iterator[str]:
    if truth.symptom is None or finding["verdict"] in OF_THE_CODE:
        return
    begun, symptom = finding["first_step"], truth.symptom - truth.program.first_watched
    if 0 <= begun < symptom and not _is_recorded(finding["verdict"], truth, begun):
        yield f"began at step {begun}, but the first different number is that of step {symptom}"


def _is_recorded(verdict: str, truth: Truth, step: int) -> bool:
    """Whether the recording itself shows the beginning of the finding, as it does in the twin.

    A scale that grows overflows once before the fault, and the loss of L-BFGS may jump and come back.
    """
    rows = truth.rows(step, step)
    if verdict in ("nonfinite-gradient", "scale-collapse", "overflow-storm"):
        return any(truth.has_bad_gradients(row) for row in rows)
    if verdict == "lopsided-step":
        return any(truth.is_partly_skipped(row) and not truth.is_skipped(row) for row in rows)
    if verdict == "nonfinite-loss":
        return any(not row.loss_is_finite for row in rows)
    if verdict == "diverged":
        before = [abs(row.loss) for row in truth.rows(0, step - 1) if row.loss is not None]
        return any(row.loss is not None and before and row.loss > FAR_RATIO * max(1.0, *before) for row in rows)
    return is_half_state(verdict, truth, step)


def is_half_state(verdict: str, truth: Truth, step: int) -> bool:
    """Whether state is in half precision, as the finding says; its first update may be that of float32 state."""
    return verdict == "half-optimizer-state" and any(row.half_state for row in truth.rows(step, step))


def _last_step(finding: dict[str, Any], truth: Truth) -> Iterator[str]:
    if finding.get("last_step", -1) > truth.last_step + 1:
        yield f"held until step {finding['last_step']} of a run whose last one is {truth.last_step}"


def _quoted_steps(finding: dict[str, Any], truth: Truth) -> Iterator[str]:
    for step in map(int, _STEP.findall(_text(finding))):
        if step > truth.last_step + 1:
            yield f"names step {step} of a run whose last one is {truth.last_step}"


def _skips(finding: dict[str, Any], truth: Truth) -> Iterator[str]:
    for count, first, last in _SKIPPED.findall(_text(finding)):
        really = sum(truth.is_partly_skipped(row) for row in truth.rows(int(first), int(last)))
        if int(count) > really:
            yield f"{count} steps skipped from {first} to {last}, but weights stood still in {really}"
    rows = truth.rows(0, truth.last_step)
    skipped = sum(truth.is_partly_skipped(row) for row in rows)
    for count, of in _OF.findall(_text(finding)):
        if int(count) > skipped or int(of) > len(rows):
            yield f"{count} of {of} skipped, but weights stood still in {skipped} of {len(rows)}"


def _applied(finding: dict[str, Any], truth: Truth) -> Iterator[str]:
    """Bad steps that were applied: the weights have changed, or are not finite any more.

    A step is bad if its gradients are; in a finding about the loss also if its loss is.
    """
    by_loss = finding["verdict"] == "nonfinite-loss"
    moved = [
        row
        for row in truth.rows(0, truth.last_step)
        if (truth.has_bad_gradients(row) or (by_loss and not row.loss_is_finite))
        and (not truth.is_skipped(row) or row.bad_weights)
    ]
    for count in _APPLIED.findall(_text(finding)):
        if int(count or 1) > len(moved):
            yield f"{count or 1} bad steps applied, but {len(moved)} of them moved the weights"


def _scales(finding: dict[str, Any], truth: Truth) -> Iterator[str]:
    known = {scale for row in truth.recording.rows for scale in (row.scale, row.used_scale) if scale is not None}
    known |= {2 * scale for scale in known} | {scale / 2 for scale in known}
    for _, exponent in _SCALE.findall(_text(finding)):
        if known and 2.0 ** int(exponent) not in known:
            yield f"names a scale of 2^{exponent}, which never was"


def _gradients(finding: dict[str, Any], truth: Truth) -> Iterator[str]:
    text = _text(finding)
    for count, first, last, only in _BAD.findall(text):
        begin, end = int(only or first), int(only or last)
        bad = [row for row in truth.rows(begin, end) if truth.has_bad_gradients(row)]
        if len(bad) < int(count or 1):
            yield f"bad gradients in {count or 1} steps from {begin} to {end}, but there were {len(bad)}"
        if "although the loss was finite" in text and any(not row.loss_is_finite for row in bad):
            yield f"a finite loss from {begin} to {end}, but it was not"
        if "so no weight was changed" in text and any(row.bad_weights for row in bad):
            yield f"no weight changed from {begin} to {end}, but weights are not finite"


def _loss(finding: dict[str, Any], truth: Truth) -> Iterator[str]:
    for step in map(int, _BAD_LOSS.findall(finding.get("title") or "")):
        if any(row.loss_is_finite for row in truth.rows(step, step)):
            yield f"a non-finite loss at step {step}, but it was finite"
    for step in map(int, _LATER_BAD_LOSS.findall(finding["cause"])):
        if any(row.loss_is_finite for row in truth.rows(step, step)):
            yield f"a loss that was NaN or infinite at step {step}, but it was finite"
    for count, first in _BAD_LOSSES.findall(finding["cause"]):
        bad = [row for row in truth.rows(int(first), truth.last_step) if not row.loss_is_finite]
        if int(count) > len(bad):
            yield f"{count} non-finite losses since step {first}, but there were {len(bad)}"


def _other_ranks(finding: dict[str, Any], truth: Truth) -> Iterator[str]:
    """Which ranks had a loss that was not finite, and when."""
    if finding["verdict"] != "nonfinite-loss":
        return
    for rank in map(int, _ONLY_RANK.findall(finding["cause"])):
        if not all(row.loss_is_finite for row in truth.of_rank(rank).other_rows(0, truth.last_step)):
            yield f"only rank {rank} with a non-finite loss, but another one had it, too"
    for rank, step in _FOLLOWED.findall(finding["cause"]):
        if any(row.loss_is_finite for row in truth.of_rank(int(rank)).rows(int(step), int(step))):
            yield f"a non-finite loss of rank {rank} at step {step}, but it was finite"


def _loss_values(finding: dict[str, Any], truth: Truth) -> Iterator[str]:
    """Losses that are quoted with their step."""
    for step, quoted in (*_LOSS_OF_STEP.findall(finding["cause"]), *_LOSS_OF_SPIKE.findall(finding["cause"])):
        for row in truth.rows(int(step), int(step)):
            if row.loss is None or abs(row.loss - float(quoted)) > LOSS_TOLERANCE * abs(row.loss):
                yield f"a loss of {quoted} at step {step}, but it was {row.loss}"


def _dtype(finding: dict[str, Any], truth: Truth) -> Iterator[str]:
    """An overflow of float16 in a program without it."""
    if "overflowed float16" in finding["cause"] and not _HALF.search(truth.program.text):
        yield "an overflow of float16, which the program does not use"


def _trial(finding: dict[str, Any], _: Truth) -> Iterator[str]:
    """A kernel that is at fault: no program has one."""
    if "kernel is at fault" in finding["cause"] or finding["verdict"] == "kernel-nan":
        yield "a kernel at fault, but all kernels are torch's"


def _grad_scaler(finding: dict[str, Any], truth: Truth) -> Iterator[str]:
    """An action of GradScaler in a program without one."""
    for action in _GRAD_SCALER.findall(finding["cause"]):
        if "GradScaler" not in truth.program.text:
            yield f"GradScaler {action}, but the program has none"


def _weights(finding: dict[str, Any], truth: Truth) -> Iterator[str]:
    says = finding["verdict"] == "nonfinite-weights" or "the weights contain NaN or Inf" in _text(finding)
    if says and not any(row.bad_weights for row in truth.recording.rows) and truth.recording.code == 0:
        yield "weights with NaN or Inf, but all were finite at every step"


def _bad_weight(finding: dict[str, Any], truth: Truth) -> Iterator[str]:
    """Parameters that are said to contain NaN or Inf. A run that died may have had them after its last row."""
    rows = (*truth.recording.rows, *truth.recording.other_rows)
    bad = {name for row in rows for name in row.bad_weights}
    named = set(_BAD_WEIGHT.findall(_text(finding)))
    if finding["verdict"] == "nonfinite-weights" and finding.get("tensor"):
        named.add(finding["tensor"])
    for name in sorted(named & set(truth.recording.names) - bad):
        if truth.recording.code == 0:
            yield f"{name} with NaN or Inf, but it was finite at every step"


def _names(finding: dict[str, Any], truth: Truth) -> Iterator[str]:
    """Names that are not in the model. A tensor of a copy has the name of its weight behind that of the copy."""
    known, copy = truth.recording.names, (finding.get("evidence") or {}).get("copy")
    for kind in ("module", "tensor"):
        name = own_name((finding.get(kind) or "").removeprefix(f"{copy}."))
        name = name if name in known else _LATER_MODEL.sub("", name)
        if name and known and name not in known and not re.fullmatch(r"(group\d+\.|copy |input).*", name):
            yield f"names the {kind} {name}, which is not in the model"
    module = finding.get("module")
    if truth.place and module and not is_part(module, truth.place):
        yield f"names the module {module}, but it is {truth.place}"
    lines = truth.program.text.splitlines()
    for number in map(int, _LINE.findall(f"{finding.get('caller') or ''} {finding['cause']}")):
        if number > len(lines) or not lines[number - 1].strip():
            yield f"names line {number}, which is empty"


def is_part(name: str, place: str) -> bool:
    """Whether a module or tensor is the place, or a part of it, also of a model that the program builds later."""
    return f"{name}.".startswith(f"{place}.") or f"{_LATER_MODEL.sub('', name)}.".startswith(f"{place}.")
