"""Sums up the inefficient operators of one forward pass from the kernel census."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed
from ammeter.verdicts.framework.single_event import truncated
from ammeter.wire.columns import View
from ammeter.wire.frames import Event, Hello

MAX_PLACES = 4
"""Maximum number of places in the state, those with most FLOPs."""


TENSOR_CORES_SINCE = 7
"""First major compute capability with tensor cores: Volta has 7.0. GPUs of other vendors have no capability."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """One kind of operator.

    Attributes:
        share: Share of the eligible FLOPs of a forward pass; modules with similar names are counted together.
        modules: Number of these modules.
    """

    share: float = 0.0
    op: str = ""
    module: str = ""
    modules: int = 1
    reason: str = ""
    dtype: str = ""
    shape: str = ""
    caller: str = ""


class Fallbacks(msgspec.Struct, frozen=True, array_like=True):
    """The state of a fallback verdict.

    Attributes:
        share: Share of the forward pass with most fallbacks.
        counted: Share of the newest forward pass, at step `step`.
        gpu: Whether the process has a GPU.
        is_old: Whether that GPU has no tensor cores.
        half: The dtype of the last autocast, if known.
    """

    opened: Lifecycle = Lifecycle()
    places: tuple[Place, ...] = ()
    share: float = 0.0
    counted: float = 0.0
    first: int = -1
    step: int = -1
    gpu: bool = False
    half: str = ""
    is_old: bool = False

    @property
    def largest(self) -> Place:
        return self.places[0]

    def evidence(self) -> dict[str, Any]:
        fields = ("op", "module", "modules", "reason", "dtype", "shape", "caller", "share")
        places = [{name: getattr(place, name) for name in fields} for place in self.places]
        return {"flops_share": round(self.share, 4), "places": places, "gpu": self.gpu}


Judge = Callable[[Fallbacks, View], tuple[Fallbacks, Finding | None]]


def fallback_judge(
    conclude: Callable[[Fallbacks], Finding],
    min_share: float,
    counts: Callable[[Place], bool],
    *,
    gpu: bool = False,
    tensor_cores: bool = False,
) -> Judge:
    """Returns the judge of a verdict on certain places of one forward pass.

    The verdict opens if they have `min_share` of the FLOPs. Each kind of operator is reported once per run, so it
    remains open.

    Args:
        conclude: Builds the finding from the state.
        min_share: Share of the FLOPs that opens the verdict.
        counts: Whether a place belongs to the verdict.
        gpu: Whether only processes with a GPU are judged.
        tensor_cores: Whether only processes with a GPU that has tensor cores are judged.
    """

    def is_judged(state: Fallbacks) -> bool:
        return (state.gpu or not (gpu or tensor_cores)) and not (tensor_cores and state.is_old)

    def judge(state: Fallbacks, view: View) -> tuple[Fallbacks, Finding | None]:
        if not view.frames:
            return state, None
        before = state
        for part in view.parts("hello", "autocast.entered", "kernel.fallback"):
            if isinstance(part, Hello):
                state = replace(state, gpu="cuda" in part.environment, is_old=_is_old(part.environment))
            elif isinstance(part, Event) and part.name == "autocast.entered":
                state = _entered(state, part)
            elif isinstance(part, Event) and is_judged(state) and counts(place := _place(part)):
                state = _with_place(state, part.step, place, min_share)
        return state, changed(conclude, before, state)

    return judge


def _is_old(environment: Mapping[str, str]) -> bool:
    """Whether a GPU of NVIDIA is older than those with tensor cores."""
    major = environment.get("capability", "").partition(".")[0]
    return major.isdecimal() and int(major) < TENSOR_CORES_SINCE


def _entered(state: Fallbacks, event: Event) -> Fallbacks:
    return replace(state, half=str(event.data.get("dtype", ""))[:20]) if event.data.get("grad") else state


def _place(event: Event) -> Place:
    data = event.data
    texts = {
        name: str(truncated(data.get(name, ""))) for name in ("op", "module", "reason", "dtype", "shape", "caller")
    }
    return Place(share=float(data.get("flops_share", 0.0)), modules=int(data.get("modules", 1)), **texts)


def _with_place(state: Fallbacks, step: int, place: Place, min_share: float) -> Fallbacks:
    counted = place.share + (state.counted if step == state.step else 0.0)
    places = tuple(sorted((*state.places, place), key=lambda entry: -entry.share)[:MAX_PLACES])
    first = step if state.first < 0 else state.first
    opened = state.opened
    if opened.active or counted >= min_share:
        opened = opened.at(first, step)
    share = max(counted, state.share)
    return replace(state, opened=opened, places=places, share=share, counted=counted, first=first, step=step)


def modules_text(place: Place) -> str:
    """Returns 'blocks.0.mlp.fc and 3 similarly named modules' for use in a sentence."""
    module = place.module or "code outside the model's submodules"
    others = place.modules - 1
    similar = f" and {wording.count(others, 'similarly named module')}" if others > 0 else ""
    return f"{module}{similar}"


def line_text(place: Place) -> str:
    """Returns ' at model.py:12', or the empty string if the line is unknown."""
    return f" at {place.caller}" if place.caller else ""
