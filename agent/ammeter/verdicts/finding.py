"""What a verdict is and what it concludes: the types every verdict, the judge and the report share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from ammeter.block import View

Severity = Literal["page", "ticket"]


class Finding(msgspec.Struct, frozen=True):
    """What a verdict concluded about one stream. A function of the verdict's state, so it does not depend on cuts.

    first_step: where the symptom began. opened_step: where the verdict was reached. last_step: where it last held.
    active: whether it still holds; False once the run recovered from it. times: how often it opened.
    """

    verdict: str
    severity: Severity
    first_step: int
    opened_step: int
    last_step: int
    cause: str
    fix: str
    title: str = ""
    active: bool = True
    times: int = 1
    tensor: str | None = None
    module: str | None = None
    caller: str | None = None
    evidence: dict[str, Any] = {}


class Verdict(msgspec.Struct, frozen=True):
    """One judgement: its name, what it asks, the columns and events it reads, and the pure function that answers.

    state: a msgspec Struct with defaults; its msgpack form stays small (2 KB). judge returns the state and,
    when the finding is new or has changed, the finding.
    explains: ids of verdicts that are consequences of this one when they begin no earlier.
    """

    id: str
    severity: Severity
    title: str
    question: str
    columns: tuple[str, ...]
    events: tuple[str, ...]
    state: type[msgspec.Struct]
    judge: Callable[[Any, View], tuple[Any, Finding | None]]
    explains: tuple[str, ...] = ()


class Judged(msgspec.Struct, frozen=True):
    """The outcome of all verdicts over one view: their states, the findings that changed, and who failed."""

    states: dict[str, bytes]
    findings: list[Finding]
    faults: dict[str, str] = {}


def module_of(tensor: str | None) -> str | None:
    """'blocks.2.mlp.fc' for 'blocks.2.mlp.fc.weight'; the tensor itself when it belongs to no module."""
    return tensor.rpartition(".")[0] or tensor if tensor else None
