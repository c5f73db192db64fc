"""The handle returned to the program: logs values for steps and ends the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from ammeter.recording.session import Session
    from ammeter.report.notebook import RunReport


auto_watchers: list[Callable[[], None]] = []
"""Callbacks that end automatic watching when the program calls watch() itself: `ammeter run` watches only programs that
do not call it."""


class Run:
    """A watched run.

    Attributes:
        id: the run's UUID, '' if nothing is watched (AMMETER_DISABLE, or a fault of Ammeter at the start).
        name: the display name.
        path: the folder of its journals, for `ammeter report`.
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
        self._await_delivery = await_delivery
        self._autocasts = [guard.autocast for guard in guards if hasattr(guard, "autocast")]

    def __repr__(self) -> str:
        if not self.id:
            return "<ammeter.Run: nothing is watched>"
        return f"<ammeter.Run {self.name!r} {self.id}, journal in {self.path}>"

    def _repr_html_(self) -> str:
        """Returns the run and its findings for a notebook."""
        from ammeter.report import notebook

        self._write_rows()
        return notebook.short_html(self.path, f"journal in {self.path}")

    def autocast(
        self, device_type: str | None = None, dtype: torch.dtype | None = None, **options: Any
    ) -> torch.autocast:
        """Returns torch.autocast(device_type, dtype, **options).

        ammeter.guards.Precision can replace the dtype.

        Args:
            device_type: defaults to that of the model's first weight.
            dtype: defaults to torch's own for the device.
            options: other arguments of torch.autocast.
        """
        import torch

        device = device_type or self._device_type(torch.cuda.is_available())
        for autocast in self._autocasts:
            replaced: torch.autocast = autocast(device, dtype, options)
            return replaced
        return torch.autocast(device, dtype, **options)

    def log(self, *, step: float | None = None, **values: Any) -> None:
        """Adds values to the last closed step: run.log(loss=..., val_loss=..., samples=...).

        Args:
            step: an earlier step to add to, as counted by run.step, from 0 in each process.
            values: numbers or tensors with one element. Tensors are copied asynchronously, without waiting.
        """
        if self._session is not None:
            self._session.log(values) if step is None else self._session.log_at(step, values)

    def report(self) -> RunReport:
        """Returns the report of the run as it is now, also after close().

        `print(run.report())` prints what `ammeter report` prints; a notebook shows findings and curves. The report is
        computed from the journal, which takes as long as that command, and never raises.
        """
        from ammeter.report import notebook

        self._write_rows()
        return notebook.report_of(self.path)

    @property
    def step(self) -> int:
        """The last closed step, from 0; -1 before the first or if nothing is watched.

        Store it when values of that step arrive later: run.log(step=stored, val_loss=...).
        """
        return -1 if self._session is None else self._session.last_step

    def close(self) -> None:
        """Ends the run: writes remaining rows, removes all hooks and waits for delivery.

        The wait lasts at most AMMETER_FLUSH seconds, until the collector has acknowledged the data. Called
        automatically at exit; a second call has no effect.
        """
        session, self._session = self._session, None
        if session is not None and session.close() and self._await_delivery is not None:
            self._await_delivery()

    def _write_rows(self) -> None:
        if self._session is not None:
            self._session.write_rows()

    def _device_type(self, has_cuda: bool) -> str:
        models = () if self._session is None else self._session.watched.models
        weights = (weight for ref in models if (model := ref()) is not None for weight in model.parameters())
        first = next(weights, None)
        return str(first.device.type) if first is not None else "cuda" if has_cuda else "cpu"
