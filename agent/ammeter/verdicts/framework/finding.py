"""What a verdict is and what it concludes: the types every verdict, the judge and the report share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from ammeter.verdicts.framework.rank_alignment import AlignedSteps
from ammeter.verdicts.framework.run_comparison import RunComparison
from ammeter.wire.columns import View

Severity = Literal["page", "ticket"]


class Finding(msgspec.Struct, frozen=True):
    """What a verdict concluded about one stream, or about the run. A function of the verdict's state, so it does not
    depend on cuts.

    first_step: where the symptom began. opened_step: where the verdict was reached. last_step: where it last held.
    active: whether it still holds; False once it is over. times: how often it opened. earliest_step: where the first of
    these episodes began, first_step where it opened once only. ranks: those it is about, where it compared ranks.
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
    ranks: tuple[int, ...] = ()
    earliest_step: int = -1


class Nothing(msgspec.Struct, frozen=True, array_like=True):
    """The state of a verdict that has none."""


def no_op(state: Any, _: Any) -> tuple[Any, None]:
    """The judge of a verdict that is not asked."""
    return state, None


class Verdict(msgspec.Struct, frozen=True):
    """One judgement: its name, what it asks, the columns and events it reads, and the pure function that answers.

    rows: whether it looks at rows; one that does not is asked only where another frame came.
    clock: whether it looks at ticks.
    state: a msgspec Struct with defaults; its msgpack form stays small (2 KB). judge is asked of a stream and returns
    the state and, when the finding is new or has changed, the finding; ranks does so for all ranks of a run at the same
    steps, and runs, whose state begins anew each time, for a run and its baseline.
    explains: ids of verdicts that are consequences of this one when they begin no earlier.
    """

    id: str
    severity: Severity
    title: str
    question: str
    columns: tuple[str, ...]
    events: tuple[str, ...]
    rows: bool = True
    clock: bool = False
    state: type[msgspec.Struct] = Nothing
    judge: Callable[[Any, View], tuple[Any, Finding | None]] = no_op
    explains: tuple[str, ...] = ()
    ranks: Callable[[Any, AlignedSteps], tuple[Any, Finding | None]] = no_op
    runs: Callable[[Any, RunComparison], tuple[Any, Finding | None]] = no_op


class Judged(msgspec.Struct, frozen=True):
    """The outcome of all verdicts over one view: their states, the findings that changed, and who failed."""

    states: dict[str, bytes]
    findings: list[Finding]
    faults: dict[str, str] = {}


def module_of(tensor: str | None) -> str | None:
    """'blocks.2.mlp.fc' for 'blocks.2.mlp.fc.weight'; the tensor itself when it belongs to no module."""
    return tensor.rpartition(".")[0] or tensor if tensor else None
