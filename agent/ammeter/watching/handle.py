"""The handle a program holds: say something about a step, and end the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from ammeter.recording.session import Session


auto_watchers: list[Callable[[], None]] = []
"""What makes way when the program calls watch() itself: `ammeter run` watches only where nobody else does."""


class Run:
    """id: the run's UUID, '' when nothing is watched (AMMETER_DISABLE, or a fault of ours at the start).

    name: as people find it. path: the folder of its journals, for `ammeter report`.
    """

    def __init__(
        self,
        id: str = "",
        session: Session | None = None,
        await_delivery: Callable[[], None] | None = None,
        guards: Sequence[Any] = (),
        name: str = "",
        path: Path | None = None,
    ) -> None:
        self.id, self.name, self.path = id, name, path
        self._session = session
        self._await_end = await_delivery
        self._autocasts = [guard.autocast for guard in guards if hasattr(guard, "autocast")]

    def __repr__(self) -> str:
        if not self.id:
            return "<ammeter.Run: nothing is watched>"
        return f"<ammeter.Run {self.name!r} {self.id}, journal in {self.path}>"

    def autocast(
        self, device_type: str | None = None, dtype: torch.dtype | None = None, **options: Any
    ) -> torch.autocast:
        """torch.autocast(device_type, dtype, **options), unless ammeter.guards.Precision has it be another dtype.

        device_type: else that of the model's first weight. dtype: else torch's own for the device.
        """
        import torch

        device = device_type or self._device_type(torch.cuda.is_available())
        for autocast in self._autocasts:
            found: torch.autocast = autocast(device, dtype, options)
            return found
        return torch.autocast(device, dtype, **options)

    def log(self, *, step: float | None = None, **values: Any) -> None:
        """Adds numbers to the step that closed last: run.log(loss=..., val_loss=..., samples=...).

        step: an earlier one that they belong to, as run.step counted it, from 0 in each process.
        A value is a number or a tensor with one element; a tensor is copied asynchronously, never waited for.
        """
        if self._session is not None:
            self._session.log(values) if step is None else self._session.log_at(step, values)

    @property
    def step(self) -> int:
        """The step that closed last, from 0; -1 before the first, and where nothing is watched. To be kept where what
        belongs to it comes later: run.log(step=kept, val_loss=...)."""
        return -1 if self._session is None else self._session.last_step

    def close(self) -> None:
        """Ends the run: writes what is left, undoes every hook, and waits at most AMMETER_FLUSH seconds for the
        collector to have it. Called at exit by itself; twice is fine."""
        session, self._session = self._session, None
        if session is not None and session.close() and self._await_end is not None:
            self._await_end()

    def _device_type(self, has_cuda: bool) -> str:
        models = () if self._session is None else self._session.watched.models
        weights = (each for ref in models if (model := ref()) is not None for each in model.parameters())
        first = next(weights, None)
        return str(first.device.type) if first is not None else "cuda" if has_cuda else "cpu"
