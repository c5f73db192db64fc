"""What a text may claim, and the evidence that has to stand beside it in the same finding.

A sentence that says more than was seen sends a person the wrong way, so each claim has a condition here. A verdict
that says something of the kind without it fails, and so does one that uses a word such as "never" in a way that
nobody has thought through yet: then a line in VETTED says on what it rests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ammeter.verdicts.framework.finding import Finding

Evidence = Callable[[Finding], bool]


@dataclass(frozen=True)
class Claim:
    """Words, and whether a finding has what they need. fix: whether they claim something in a fix as well."""

    words: str
    holds: Evidence
    needs: str
    fix: bool = True


def number(finding: Finding, name: str) -> float | None:
    value = finding.evidence.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def has(*names: str) -> Evidence:
    """One of these in the evidence, and not empty."""
    return lambda finding: any(finding.evidence.get(name) not in (None, "", [], {}) for name in names)


def failed_at_scale_1(finding: Finding) -> bool:
    lowest = number(finding, "lowest_failed_scale")
    return lowest is not None and lowest <= 1 and number(finding, "applied_again_at_scale") is None


def of_trial(*answers: str) -> Evidence:
    """The operator ran again, with one of these answers."""
    return lambda finding: finding.evidence.get("trial") in answers


def nothing_applied(finding: Finding) -> bool:
    """No optimizer stepped in the steps that the finding is about."""
    return number(finding, "steps_applied") == 0 and not number(finding, "steps_partly_applied")


CLAIMS = (
    Claim(
        r"\bno overflow|not an overflow|scale is not (the reason|to blame)",
        failed_at_scale_1,
        "lowest_failed_scale of 1 or less, and no step that was applied below",
    ),
    Claim(
        r"\b(any|whatever the|every|no) (loss )?scales?\b(?! mends that:)",
        lambda finding: failed_at_scale_1(finding) or has("scaler_disabled", "weights_nonfinite_at_step")(finding),
        "as above",
    ),
    Claim(r"\b[Dd]o not lower the scale", failed_at_scale_1, "as above"),
    Claim(r"(?i)\bpoison", has("nonfinite_weight"), "nonfinite_weight, which was read"),
    Claim(
        r"[Ww]eights (hold|contain)(ed)? NaN|[Ww]eight tensors? contains? NaN",
        has("nonfinite_weight", "weights_nonfinite_at_step"),
        "nonfinite_weight, which was read",
    ),
    Claim(r"(?i)\bunharmed\b", has("weights_read_finite"), "weights_read_finite: nothing else shows it"),
    Claim(r"(no weight was changed|changed no weight\b)", nothing_applied, "steps_applied of 0, none applied in part"),
    Claim(r"(?i)\brecover", lambda finding: not finding.active, "that it is over, which takes steps that were applied"),
    Claim(
        r"originated? in the backward",
        lambda finding: finding.evidence.get("born_in") == "backward" and finding.evidence.get("loss_finite") is True,
        "born_in, seen by hooks, and a loss that was read and is finite",
    ),
    Claim(
        r"originated? in the forward",
        lambda finding: (
            finding.evidence.get("born_in") == "forward" and number(finding, "last_finite_absmax") is not None
        ),
        "born_in, seen by hooks, and the largest number that went in",
    ),
    Claim(r"originated? (?!in the (forward|backward))", lambda _: False, "forward or backward, and where"),
    Claim(r"first NaN or Inf was in", has("born_in"), "born_in"),
    Claim(r"old copies|copies from before", has("stale_numbers"), "copies that differed from their weights"),
    Claim(r"worthless|for good\b|is lost\b|are lost\b", lambda _: False, "nothing shows that", fix=False),
    Claim(r"kernel is at fault", of_trial("kernel"), "a trial: the kernel failed again and another one did not"),
    Claim(r"so its kernel does not repeat", of_trial("differs"), "a trial: its two runs are different"),
    Claim(r"\bkernel of \S+ makes", of_trial("kernel", "differs"), "a trial that proves it"),
    Claim(r"in float64 as well", of_trial("undefined"), "a trial with this result"),
    Claim(r"it divides by what", of_trial("rounded"), "a trial: it is finite in float64 as a whole"),
    Claim(r"it is an overflow", of_trial("range"), "a trial: the exact result is too large"),
    Claim(r"\b[Ii]t is (not|no)\b(?! (an )?overflow)", lambda _: False, "a line in VETTED", fix=False),
)
"""Pattern -> what has to stand beside it."""

VAGUE = re.compile(r"\b(never|always|ever|only|alone|nobody|nothing|first)\b", re.IGNORECASE)
"""Words that claim something of all steps. In a fix they are advice."""


def told(_: Finding) -> bool:
    """It is a rule of torch or of arithmetic, and says nothing of the run."""
    return True


VETTED: dict[str, tuple[tuple[str, Evidence], ...]] = {
    "*": (
        (r"the first began at \d+", lambda finding: finding.times > 1),
        (r"first NaN or Inf was in", has("born_in")),
    ),
    "masked-row-nan": ((r"is the first with NaN", lambda finding: number(finding, "sample") is not None),),
    "mixed-scale-gradients": (
        (r"nothing is wrong", lambda finding: finding.evidence["scale"] == finding.evidence["scale_before"]),
    ),
    "resume-mismatch": (
        (r"started from zero, so the first steps have", lambda finding: bool(number(finding, "state_elements"))),
    ),
    "checkpoint-incomplete": ((r"weights in half precision only", has("weights")),),
    "run-lost": ((r"before its first step", lambda finding: number(finding, "last_step") == -1),),
    "scale-collapse": ((r"the first of these scales", has("scale_from")),),
    "not-reproducible": ((r"from the first step on", lambda finding: finding.evidence.get("step") == 0),),
    "ranks-disagree": ((r"the first compared step on", has("scale")),),
    "slower-than-fp32": ((r"Only [\d.]+ %", has("low_precision_share")),),
    "validation-drift": (
        (r"is the first at which both runs have a value", lambda finding: bool(number(finding, "in_a_row"))),
    ),
}
"""Verdict -> the phrases with such a word that it may use in a title or cause, and what they rest on."""


def unfounded(finding: Finding, earliest: int | None = None) -> Iterator[str]:
    """What the finding claims without evidence: the sentence, and what it needs.

    earliest: the first step of its first episode, where the caller knows it.
    """
    for where, text in (("title", finding.title), ("cause", finding.cause), ("fix", finding.fix)):
        for sentence in re.split(r"(?<=[.:;])\s+", text):
            for claim in CLAIMS:
                if re.search(claim.words, sentence) and (claim.fix or where != "fix") and not claim.holds(finding):
                    yield f"{finding.verdict}, {where}: {sentence!r} needs {claim.needs}"
            if where != "fix":
                yield from _vague(finding, sentence)
                yield from _since(finding, sentence, earliest)


def _vague(finding: Finding, sentence: str) -> Iterator[str]:
    sentence = re.sub(r"\S+\.\S+", "", sentence)  # a name, such as model.first.weight
    for phrase, holds in (*VETTED["*"], *VETTED.get(finding.verdict, ())):
        if re.search(phrase, sentence) and holds(finding):
            sentence = re.sub(phrase, "", sentence)
    if found := VAGUE.search(sentence):
        yield f"{finding.verdict}: {sentence!r} says {found[0]!r}, of which VETTED knows nothing that it rests on"


def _since(finding: Finding, sentence: str, earliest: int | None) -> Iterator[str]:
    """'since step N' is that of the first episode, or says when that was."""
    for step in map(int, re.findall(r"\b[Ss]ince step (\d+)", sentence)):
        if finding.times < 2 or earliest is None or step <= earliest or f"first began at {earliest}" in sentence:
            continue
        if step == finding.first_step:
            yield f"{finding.verdict}: {sentence!r} leaves out that it was so from step {earliest} on before"
