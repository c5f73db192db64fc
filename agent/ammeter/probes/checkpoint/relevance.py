"""Decides whether a file is a checkpoint of this run, and which parts it lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ammeter.preparation.contents import group_of

if TYPE_CHECKING:
    from ammeter.preparation.contents import Contents, Group
    from ammeter.torch_hooks.targets import Watched

MIN_WEIGHTS_SHARE = 0.01
"""Share of the trained weights below which a file without other training state is not a checkpoint of this run."""

MIN_MODEL_SHARE = 0.5
"""Minimum share of a file's weights with the shape of a watched tensor; a file with less is data or another model.

It is also the minimum of float32 and float64 elements in a file, relative to those that are trained.
"""

_WIDE = ("float32", "float64")


class Relevance:
    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def is_checkpoint(self, contents: Contents) -> bool:
        """Whether an object is a checkpoint of this run.

        Data that programs save has neither training state nor weights with the shapes of watched tensors.
        """
        if contents.is_state():
            return True
        weights = sum(contents.weights.values())
        trained = sum(self._trained().values())
        if not weights or weights < MIN_WEIGHTS_SHARE * trained:
            return False
        shapes = {tensor.shape for tensor in self._watched.tensors}
        return sum(contents.shapes[shape] for shape in shapes) >= MIN_MODEL_SHARE * weights

    def fits(self, contents: Contents) -> bool:
        """Whether a file has the weights, and the state of an optimizer with the settings, of this training.

        A program that starts from the weights of another run seldom has all of its settings, such as the learning rate.
        """
        elements: Counter[tuple[int, ...]] = Counter()
        for optimizer in self._watched.optimizers:
            for _, index in zip(*self._watched.parameters(optimizer), strict=True):
                tensor = self._watched.tensors[index]
                elements[tensor.shape] += tensor.numel
        if not elements or any(contents.shapes[shape] < count for shape, count in elements.items()):
            return False
        own = [[group_of(group) for group in optimizer.param_groups] for optimizer in self._watched.optimizers]
        return all(any(_equal(groups, saved) for saved in contents.groups) for groups in own)

    def missing(self, contents: Contents) -> list[str]:
        """The missing parts that training needs to resume exactly."""
        wide = sum(contents.weights[dtype] for dtype in _WIDE)
        trained_wide = sum(self._trained()[dtype] for dtype in _WIDE)
        scales = any(scaler.is_enabled() for scaler in self._watched.scalers)
        absent = {
            "weights": not contents.weights,
            "float32 weights": bool(contents.weights) and wide < MIN_MODEL_SHARE * trained_wide,
            "optimizer": not contents.optimizer,
            "scaler": not contents.scaler and scales,
        }
        return [name for name, is_absent in absent.items() if is_absent]

    def _trained(self) -> Counter[str]:
        """Elements by dtype of the weights that optimizers step."""
        elements: Counter[str] = Counter()
        for optimizer in self._watched.optimizers:
            for _, index in zip(*self._watched.parameters(optimizer), strict=True):
                tensor = self._watched.tensors[index]
                elements[tensor.dtype] += tensor.numel
        return elements


def _equal(groups: Sequence[Group], saved: Sequence[Group]) -> bool:
    """Whether parameter groups have the same numbers of tensors and the same settings, where both have a setting."""
    if [count for count, _ in groups] != [count for count, _ in saved]:
        return False
    pairs = zip((_initial(own) for _, own in groups), (_initial(other) for _, other in saved), strict=True)
    return all(own[name] == other[name] for own, other in pairs for name in own.keys() & other.keys())


def _initial(settings: dict[str, float]) -> dict[str, float]:
    """Returns the settings with the learning rate from which a schedule starts."""
    rate = settings.get("initial_lr 0", settings.get("lr 0"))
    return settings if rate is None else {**settings, "lr 0": rate, "initial_lr 0": rate}
