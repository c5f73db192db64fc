"""Types that verdicts, the judge and the report share: Verdict, Finding and Judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from ammeter.verdicts.framework.model_shape import OPTIMIZER_TENSOR
from ammeter.verdicts.framework.rank_alignment import AlignedSteps
from ammeter.verdicts.framework.readings import Readings, RunFacts, always
from ammeter.verdicts.framework.run_comparison import RunComparison
from ammeter.wire.columns import View
from ammeter.wire.decodable import decodable

Severity = Literal["page", "ticket"]

BEFORE_FORWARD = "before_forward_pass"
"""Key of the evidence that the symptom existed before the forward pass of the finding's first step. Such a finding
began before all others of the same first step."""


@decodable
class Finding(msgspec.Struct, frozen=True):
    """The conclusion of a verdict about one stream, or about the run.

    A finding is a function of the verdict's state, so it does not depend on how the stream was cut into views.

    Attributes:
        first_step: First step of the symptom.
        opened_step: Step at which the verdict was reached.
        last_step: Last step at which the verdict held.
        active: Whether the verdict still holds; False after recovery.
        times: Number of episodes, that is how often the verdict opened.
        earliest_step: First step of the first episode; equal to first_step if there was only one.
        ranks: The ranks that the finding is about, if the verdict compared ranks.
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
    """The state of a verdict that keeps no state."""


def no_op(state: Any, _: Any) -> tuple[Any, None]:
    """The default for the judge functions that a verdict does not have."""
    return state, None


class Verdict(msgspec.Struct, frozen=True):
    """One judgement: its id, its question, its columns and events, and its pure functions.

    Attributes:
        rows: Whether the verdict reads rows. If False, views that contain only rows are not passed to it.
        clock: Whether the verdict reads ticks.
        state: A msgspec Struct with defaults. Its msgpack form must stay small (2 KB).
        judge: Judges one stream. Returns the state and, if it is new or has changed, the finding.
        ranks: The same for all ranks of a run at the same steps.
        runs: The same for a run and its baseline; its state starts empty in each call.
        needs: Readings without which the verdict cannot be reached. Columns that every step has need none.
        applies: Whether the verdict's question makes sense for a stream. If not, its needs do not count.
        history: Columns that suffice for the verdict in a history of another tool, which has no events. Empty if it
            needs more than a history can have; it is not judged then.
        explains: Ids of verdicts that are consequences of this one if they begin no earlier.
        shows: Whether a finding of this verdict shows that it explains the one with this id, of those in `explains`.
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
    needs: tuple[Readings, ...] = ()
    applies: Callable[[RunFacts], bool] = always
    history: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()
    shows: Callable[[Finding, str], bool] = lambda *_: True
    ranks: Callable[[Any, AlignedSteps], tuple[Any, Finding | None]] = no_op
    runs: Callable[[Any, RunComparison], tuple[Any, Finding | None]] = no_op


class Judged(msgspec.Struct, frozen=True):
    """The outcome of all verdicts over one view: states, changed findings, and errors by verdict."""

    states: dict[str, bytes]
    findings: list[Finding]
    faults: dict[str, str] = {}


def module_of(tensor: str | None) -> str | None:
    """Returns 'blocks.2.mlp.fc' for 'blocks.2.mlp.fc.weight'.

    Returns the tensor's own name if it belongs to no module, and None if only the optimizer has it.
    """
    if not tensor or OPTIMIZER_TENSOR.fullmatch(tensor):
        return None
    return tensor.rpartition(".")[0] or tensor
