"""Names of the weights, buffers and modules of the watched models, for operators of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ammeter.torch_hooks.forward_calls import innermost

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext


class ModelNames:
    """The names at one moment."""

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        names = session.watched.tensors
        self._weights = {id(tensor): names[index].name for index, tensor in session.watched.alive()}

    def of_tensor(self, tensor: torch.Tensor) -> str:
        """The name of a weight, or of the buffer of a watched model in the same memory, '' if there is none."""
        return self._weights.get(id(tensor)) or self._of_buffer(tensor)

    def has_forward(self, path: str) -> bool:
        """Whether a path is a module with its own forward(), and no container such as Sequential."""
        for model in filter(None, (ref() for ref in self._session.watched.models)):
            prefix = self._session.forward.prefix(model)
            if path.startswith(prefix):
                module = dict(innermost(model).named_modules()).get(path.removeprefix(prefix))
                return module is not None and not type(module).__module__.startswith("torch.nn.modules.container")
        return False

    def _of_buffer(self, tensor: torch.Tensor) -> str:
        for model in filter(None, (ref() for ref in self._session.watched.models)):
            prefix = self._session.forward.prefix(model)
            for name, buffer in innermost(model).named_buffers():
                if buffer.data_ptr() == tensor.data_ptr() and buffer.shape == tensor.shape:
                    return f"{prefix}{name}"
        return ""
