"""Finds the visited module that a NaN or an Inf came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ammeter.probes.origin.floats import Numbers
from ammeter.probes.origin.visits import Visit, Visits

MAX_PATH_MODULES = 21
"""Modules in the list that leads to the culprit, which is the last of them."""

FLOAT16_MAX = 65504.0

MASK_ABSMAX = FLOAT16_MAX - 512
"""Outputs that reach it contain torch.finfo(torch.float16).min, which masks attention scores, or scores below 512 to
which it was added. Their other numbers are not known."""

MAX_ACTIVATION = 1e38
"""Outputs of other dtypes that reach it contain such a mask."""

MAX_PEAKS = 5

Read = list[Numbers | None]
Bad = Callable[[Numbers | None], bool]


def find_origin(
    visits: Visits, confidence: str, *, loss_is_finite: bool, imputes: bool = False
) -> dict[str, Any] | None:
    """Finds the first module with finite inputs and non-finite output, else backward's origin.

    Args:
        confidence: the source of the visits, `hooks` or `replay`.
        imputes: whether inputs are no origin, because the model had such ones in a good step, too.
    """
    read = visits.readings.all()
    data = None if imputes else _input(visits, read)
    if data is not None:
        return data | {"confidence": confidence}
    at = next(_forward_sources(visits, read, _faulty), None)
    if at is None and not loss_is_finite and _reaches_the_loss(visits, read):
        at = max(_forward_sources(visits, read, _not_finite), key=visits.ended.index, default=None)
    if at is not None:
        return _forward(visits, read, at) | {"confidence": confidence}
    if not loss_is_finite:
        if not imputes and any(visit.parent < 0 and _any(read, visit.inputs, _faulty) for visit in visits.visits):
            return None  # what made this input was not visited
        return _in_the_loss(visits, read) | {"confidence": confidence} if visits.ended else None
    origin = _backward_origin(visits, read)
    return origin | {"confidence": confidence} if origin else None


def peaks(visits: Visits) -> list[dict[str, Any]]:
    """The MAX_PEAKS modules with the largest finite float16 outputs, largest first, as shares of 65504."""
    read, absmaxes = visits.readings.all(), dict[str, float]()
    for visit in visits.visits:
        for place, dtype in zip(visit.outputs, visit.dtypes, strict=True):
            numbers = read[place]
            if dtype == "float16" and numbers is not None and numbers.absmax < MASK_ABSMAX:
                absmaxes[visit.module] = max(absmaxes.get(visit.module, 0.0), numbers.absmax)
    top = sorted(absmaxes.items(), key=lambda peak: -peak[1])[:MAX_PEAKS]
    return [{"module": module, "absmax": absmax, "share": absmax / FLOAT16_MAX} for module, absmax in top]


def largest(visits: Visits) -> dict[str, Any]:
    """The module with the largest finite output, in its dtype; masks do not count."""
    read = visits.readings.all()
    module, dtype, absmax = "", "", 0.0
    for visit in visits.visits:
        for place, own in zip(visit.outputs, visit.dtypes, strict=True):
            numbers = read[place]
            limit = MASK_ABSMAX if own == "float16" else MAX_ACTIVATION
            if numbers is not None and absmax < numbers.absmax < limit:
                module, dtype, absmax = visit.module, own, numbers.absmax
    return {"module": module, "dtype": dtype, "absmax": absmax}


def _faulty(numbers: Numbers | None) -> bool:
    """Whether a tensor has NaN or Inf and is no mask.

    The -Inf of a mask is no fault; a module that turns it into a NaN is the culprit.
    """
    return numbers is not None and numbers.bad and not numbers.masked


def _not_finite(numbers: Numbers | None) -> bool:
    return numbers is not None and numbers.bad


def _forward_sources(visits: Visits, read: Read, bad: Bad) -> Iterator[int]:
    for at in visits.ended:
        visit = visits.visits[at]
        if _any(read, visit.outputs, bad) and not _any(read, visit.inputs, bad):
            yield at


def _input(visits: Visits, read: Read) -> dict[str, Any] | None:
    """Describes the first non-finite input that no model made."""
    given = (argument for visit in visits.visits for argument in visit.data)
    for place, name in given:
        numbers = read[place]
        if numbers is not None and _faulty(numbers):
            data = {"kind": "input", "module": "", "input": name, "absmax": numbers.absmax}
            infs = int(numbers.positive + numbers.negative)
            return data | {"sample": int(numbers.sample), "nans": int(numbers.nans), "infs": infs}
    return None


def _reaches_the_loss(visits: Visits, read: Read) -> bool:
    """Whether the model's own output is not finite.

    In that case, the last module that made a -Inf from finite inputs is the culprit.
    """
    return any(visit.parent < 0 and _any(read, visit.outputs, _not_finite) for visit in visits.visits)


def _forward(visits: Visits, read: Read, at: int) -> dict[str, Any]:
    visit = visits.visits[at]
    weights = [name for name, place in visit.weights if _is_bad_weight(visit, name, read[place])]
    which = next(number for number, place in enumerate(visit.outputs) if _not_finite(read[place]))
    numbers = read[visit.outputs[which]]
    assert numbers is not None
    data: dict[str, Any] = {
        "kind": "weights" if weights else "forward",
        "module": visit.module,
        "class": visit.kind,
        "op": visit.op or visit.kind,
        "direction": "forward",
        "dtype": visit.dtypes[which],
        "absmax": _absmax(read, visit.inputs),
        "nans": int(numbers.nans),
        "infs": int(numbers.positive + numbers.negative),
        "sample": int(numbers.sample),
        "last": _path_to(visits, read, at),
    }
    if not weights:
        return data
    name = next((weight for weight in weights if weight not in visit.buffers), weights[0])
    tensor = ".".join(filter(None, (visit.module, name)))
    return data | {"tensor": tensor, **({"buffer": True} if name in visit.buffers else {})}


def _is_bad_weight(visit: Visit, name: str, numbers: Numbers | None) -> bool:
    """Whether a weight or buffer is the origin; a -Inf mask is not."""
    return _faulty(numbers) if name in visit.buffers else _not_finite(numbers)


def _in_the_loss(visits: Visits, read: Read) -> dict[str, Any]:
    """Describes a NaN that arose between the finite outputs of the modules and the loss."""
    data = {"kind": "forward", "module": "", "op": "loss", "direction": "forward"}
    outputs = visits.visits[visits.ended[-1]].outputs
    return data | {"absmax": _absmax(read, outputs), "last": _path_to(visits, read, visits.ended[-1])}


def _backward_origin(visits: Visits, read: Read) -> dict[str, Any] | None:
    """Finds the first non-finite gradient in backward and the module that produced it.

    This is the module that received the tensor as an input in the forward pass.
    """
    gradients = {place: read[gradient] for place, gradient in reversed(visits.gradients)}
    first = next((place for place, gradient in visits.gradients if _not_finite(read[gradient])), None)
    if first is None:
        return None
    numbers = gradients[first]
    assert numbers is not None
    visit = _consumer(visits, gradients, first)
    passed = [visit for visit in map(visits.visits.__getitem__, reversed(visits.ended)) if _clean(visit, gradients)]
    return {
        "kind": "backward",
        "module": visit.module if visit else "",
        "class": visit.kind if visit else "",
        "op": (visit.op or visit.kind) if visit else "loss",
        "direction": "backward",
        "dtype": visit.dtypes[0] if visit and visit.dtypes else "",
        "absmax": _gradient_absmax(visit, gradients) if visit else 0.0,
        "nans": int(numbers.nans),
        "infs": int(numbers.positive + numbers.negative),
        "sample": int(numbers.sample),
        "last": [
            {"module": before.module, "absmax": _gradient_absmax(before, gradients)}
            for before in passed[-MAX_PATH_MODULES:]
        ],
    }


def _consumer(visits: Visits, gradients: dict[int, Numbers | None], place: int) -> Visit | None:
    """The innermost module that used this tensor and itself received finite gradients.

    None if there is no such module: the non-finite gradient then came from the loss.
    """
    consumers = [
        candidate
        for candidate in visits.visits
        if candidate.last >= 0 and place in candidate.inputs and place not in candidate.outputs
    ]
    for visit in sorted(consumers, key=lambda visit: visit.last - visit.first):
        if _clean(visit, gradients):
            return visit
    producer = next((candidate for candidate in visits.visits if place in candidate.outputs), None)
    while producer is not None and producer.parent >= 0:
        producer = visits.visits[producer.parent]
        if place not in producer.outputs and _clean(producer, gradients):
            return producer
    return None


def _clean(visit: Visit, gradients: dict[int, Numbers | None]) -> bool:
    received = [gradients[place] for place in visit.outputs if place in gradients]
    return bool(received) and not any(map(_not_finite, received))


def _gradient_absmax(visit: Visit, gradients: dict[int, Numbers | None]) -> float:
    return max((_finite(gradients.get(place)) for place in visit.outputs), default=0.0)


def _path_to(visits: Visits, read: Read, at: int) -> list[dict[str, Any]]:
    ended = visits.ended[: visits.ended.index(at) + 1][-MAX_PATH_MODULES:]
    path = (visits.visits[before] for before in ended)
    return [{"module": visit.module, "absmax": _absmax(read, visit.outputs)} for visit in path]


def _any(read: Read, places: Iterable[int], bad: Bad) -> bool:
    return any(bad(read[place]) for place in places)


def _absmax(read: Read, places: Iterable[int]) -> float:
    return max((_finite(read[place]) for place in places), default=0.0)


def _finite(numbers: Numbers | None) -> float:
    return numbers.absmax if numbers is not None else 0.0
