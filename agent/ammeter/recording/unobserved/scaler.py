"""Finds calls of GradScaler's methods that no patch observes, by the scaler's own state.

scale() leaves a product with the scaler's scale at the root of the graph. step() leaves its stage in the scaler's
record of the optimizer, and update() clears these records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch.amp.grad_scaler import OptState

from ammeter.tensors import async_copy
from ammeter.tensors.hidden_reads import unseen
from ammeter.torch_hooks import call_site, loss_graph, replay

if TYPE_CHECKING:
    from ammeter.recording.session import Session


class UnobservedScaler:
    """Replays the callbacks of the calls that it finds."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def before_backward(self, outputs: Any) -> None:
        """Replays scale() if backward() begins at a product with the scale of a watched scaler.

        The losses of the step are recorded with that factor, which `scaled_by` names.
        """
        session = self._session
        root = outputs[0] if isinstance(outputs, list | tuple) and len(outputs) == 1 else outputs
        if not isinstance(root, torch.Tensor):
            return
        for scaler in session.watched.scalers:
            if unseen(lambda: _is_scaled_by(root, scaler), (root,)):  # noqa: B023 - called at once
                self._leave_fast_path()
                replay.method(type(scaler), "scale", (scaler, root), {}, root)
                session.row.raw["scaled_by"] = scale = async_copy.of(cast(torch.Tensor, scaler._scale))
                session.row.wait_for(scale)

    def before_update(self, scaler: Any) -> None:
        """Replays the end of step() for optimizers that this scaler has stepped or skipped."""
        session, row = self._session, self._session.row
        states = getattr(scaler, "_per_optimizer_states", {})
        for optimizer in session.watched.optimizers if states else ():
            key = id(optimizer)
            is_known = key in row.skipped or (key in row.stepped and key in row.scaler_used)
            if not is_known and states.get(key, {}).get("stage") is OptState.STEPPED:
                self._leave_fast_path()
                with call_site.unknown():
                    replay.end_of_method(type(scaler), "step", (scaler, optimizer), {}, None)

    def find_updates(self, used: set[int], updated: set[int]) -> None:
        """Replays update() of scalers that have forgotten the optimizers they stepped.

        Args:
            used, updated: ids of the scalers that stepped an optimizer, and of those that updated since.
        """
        for scaler in self._session.watched.scalers:
            is_open = id(scaler) in used and id(scaler) not in updated
            if is_open and scaler.is_enabled() and not getattr(scaler, "_per_optimizer_states", True):
                self._leave_fast_path()
                self._session.row.raw["late_update"] = True
                with call_site.unknown():
                    replay.method(type(scaler), "update", (scaler,), {}, None)

    def _leave_fast_path(self) -> None:
        self._session.fast_path.disable()
        self._session.fast_path.leave()


def _is_scaled_by(root: torch.Tensor, scaler: Any) -> bool:
    """Whether a loss is the product of a tensor and the scale of this scaler."""
    node, scale = root.grad_fn, getattr(scaler, "_scale", None)
    if node is None or scale is None or node.name() != "MulBackward0":
        return False
    name = "_saved_other" if node.next_functions[0][0] is not None else "_saved_self"
    if loss_graph.is_hooked(node, name):
        return False
    operand = getattr(node, name)
    return isinstance(operand, torch.Tensor) and operand.numel() == 1 and operand.data_ptr() == scale.data_ptr()
