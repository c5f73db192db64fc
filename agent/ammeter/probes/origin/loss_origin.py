"""Searches the origin of a non-finite loss in its graph, when the program calls backward() or scale()."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.loss_stacks import LossStacks
from ammeter.probes.origin.asked import TRIAL
from ammeter.probes.origin.floats import Numbers, Readings, is_readable
from ammeter.probes.origin.graph import culprit as graph_culprit
from ammeter.probes.origin.graph.reproducer import Reproducers
from ammeter.probes.origin.graph.trial import Trial
from ammeter.probes.origin.model_names import ModelNames
from ammeter.tensors.hidden_reads import unseen
from ammeter.torch_hooks import call_site

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext

MAX_SEARCHES = 10
"""Searches in bad steps close to each other; later ones follow after REPEAT_STEPS."""

REPEAT_STEPS = 100
"""Steps after which a further graph is searched, because a later NaN may have another origin."""


MAX_TRACED_PASSES = 32
MAX_TRACES = 3
"""Forward passes after which the line of an operator behind the model is searched, and how often in a run."""


class LossOrigin:
    """Leaves the origin of a step's first non-finite loss in `row.raw["loss_origin"]`."""

    def __init__(self, session: ProbeContext, guard: Callable[..., Any] | None = None) -> None:
        """Creates a search.

        Args:
            guard: makes callbacks safe that find the line of an operator behind the model, in a later bad step. Without
                it the line is not searched.
        """
        self._session = session
        self._guard = guard
        self._stacks = LossStacks(session)
        self._traces = 0
        self._searches = 0
        self._last = -REPEAT_STEPS
        self._reproducers = Reproducers(session.journal.folder)

    def search(self, losses: Sequence[torch.Tensor], place: call_site.Place, call: str = "", *, line: str = "") -> None:
        """Searches the graphs of losses on the host.

        Args:
            losses: the tensors that backward() or scale() receives, or another call.
            place: the line of that call.
            call: the name of another call.
            line: the line at which the program ended, if it called none of them.
        """
        row = self._session.row
        if "loss_origin" in row.raw or not self._is_due(row.step):
            return
        self._searches += 1
        self._last = row.step
        found = unseen(lambda: self._found(losses), losses)
        if found is not None:
            tried: Trial | None = found.pop("operator", None)
            found |= self._reproducers.write(row.step, found["op"], tried) if tried else {}
            line = line or call_site.line_at(place) or call_site.name_of(place)
            row.raw["loss_origin"] = found | {"caller": line} | ({"call": call} if call else {})
            self._trace(found)

    def remove(self) -> None:
        self._stacks.end()

    def _trace(self, found: dict[str, Any]) -> None:
        """Has the line of an operator behind the model stored in the next steps, which may be bad, too."""
        if found.get("line"):
            self._stacks.end()
        elif found.get("behind") and self._guard and self._traces < MAX_TRACES:
            self._traces += 1
            self._stacks.begin(self._guard, MAX_TRACED_PASSES)

    def _found(self, losses: Sequence[torch.Tensor]) -> dict[str, Any] | None:
        root = next((loss for loss in losses if loss.is_cpu and not torch.isfinite(loss.detach()).all()), None)
        if root is None or root.grad_fn is None:
            return None
        names = ModelNames(self._session)
        found = graph_culprit.find_origin(root, names.of_tensor, names.has_forward)
        hidden = found is None or found.pop("hidden")
        return (self._bad_weight() if hidden else None) or found

    def _bad_weight(self) -> dict[str, Any] | None:
        """Reads the weights and describes the first one with NaN or +Inf, which the graph may not show."""
        watched = self._session.watched
        for index, tensor in watched.alive():
            if tensor.requires_grad and tensor.is_cpu and is_readable(tensor):
                readings = Readings()
                readings.add(tensor)
                numbers = readings.all()[0]
                if numbers is not None and numbers.bad and not numbers.masked:
                    return _of_weight(watched.tensors[index].name, tensor, numbers)
        return None

    def _is_due(self, step: int) -> bool:
        is_asked = self._session.directives.current(TRIAL, step) is not None
        return is_asked or self._searches < MAX_SEARCHES or step - self._last >= REPEAT_STEPS


def _of_weight(name: str, weight: torch.Tensor, numbers: Numbers) -> dict[str, Any]:
    """Returns the data that graph_culprit has of a weight."""
    return {
        "kind": "weights",
        "module": name.rpartition(".")[0],
        "tensor": name,
        "nans": int(numbers.nans),
        "infs": int(numbers.positive + numbers.negative),
        "sample": int(numbers.sample),
        "op": "",
        "direction": "forward",
        "dtype": str(weight.dtype).removeprefix("torch."),
        "absmax": None,
        "reason": "",
        "confidence": "graph",
    }
