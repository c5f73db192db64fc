"""Carries out directives for a census: the operators of the next steps, whatever the budget allows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ammeter.probes.kernels.census import Summary, Work, summary
from ammeter.probes.kernels.reports import attention_of, key_of

if TYPE_CHECKING:
    from ammeter.probes.kernels.step_census import StepCensus
    from ammeter.recording.directives.request import Request

CENSUS = "census"

MAX_OPERATORS = 12
MAX_FALLBACKS = 12
"""Kinds of operators, and of fallbacks, in one answer: those with most FLOPs."""


def begin(request: Request) -> str:
    request.facts["reason"] = "unheard"
    return ""


def add(request: Request, census: StepCensus) -> None:
    """Adds the census of a step to the answer, which describes the last one."""
    if not census.calls:
        return
    request.read_steps += 1
    request.facts.pop("reason", None)
    result = summary(census.calls)
    request.facts |= {
        "share": result.low / result.eligible if result.eligible else None,
        "flops_eligible": result.eligible,
        "operators": _operators(census),
        "fallbacks": _fallbacks(result),
        "attention": attention_of(census.calls),
        "whole": census.is_complete,
        **{name: sum(getattr(call, name) for call in census.calls) for name in ("casts", "cast_bytes", "recast_bytes")},
    }


def blind(request: Request | None, reason: str) -> None:
    """Notes why a step could not be counted."""
    if request is not None and not request.read_steps:
        request.facts["reason"] = reason


def _operators(census: StepCensus) -> list[dict[str, Any]]:
    """The kinds of operators with their dtype, most FLOPs first."""
    works = [work for call in census.calls for work in call.work.values()]
    return [
        {"op": op, "dtype": dtype, "modules": len({work.module for work in kind}), "flops": _flops(kind)}
        for (op, dtype), kind in _most(works, lambda work: (work.op, _name(work)))[:MAX_OPERATORS]
    ]


def _fallbacks(result: Summary) -> list[dict[str, Any]]:
    """The kinds of fallbacks, most FLOPs first."""
    return [
        {
            "op": kind[0].op,
            "module": kind[0].module,
            "modules": len(kind),
            "reason": kind[0].reason,
            "dtype": _name(kind[0]),
            "caller": kind[0].caller,
            "flops_share": _flops(kind) / result.eligible,
        }
        for _, kind in _most(result.fallbacks, key_of)[:MAX_FALLBACKS]
    ]


def _most(works: Iterable[Work], key: Any) -> list[tuple[Any, list[Work]]]:
    kinds: dict[Any, list[Work]] = {}
    for work in works:
        kinds.setdefault(key(work), []).append(work)
    return sorted(kinds.items(), key=lambda kind: -_flops(kind[1]))


def _flops(works: Iterable[Work]) -> int:
    return sum(work.flops for work in works)


def _name(work: Work) -> str:
    return str(work.dtype).removeprefix("torch.")
