"""Ammeter as a peer, once for each preset."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import numpy as np
import torch

import ammeter
from ammeter import journal
from ammeter.wire import columns
from ammeter.wire.frames import SCALARS, Steps
from bench.agent.peers import NOT_PROVIDED, Coverage, Peer
from bench.agent.training import TINY, Training


class Ammeter(Peer):
    """One watched session, which is unsubscribed between its blocks."""

    name = "ammeter"
    coverage = Coverage("within budget", "within budget", "forward, backward", "each step")
    preset = "default"

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self._folder = folder
        self._run = ammeter.watch(
            training.model, training.optimizer, training.scaler, dir=folder, name="bench", preset=self.preset
        )
        session = self._run._session
        if session is None:
            raise RuntimeError("Ammeter did not start; unset AMMETER_DISABLE, and see its warning above")
        self._session = session
        self._young_steps = 0
        """Steps before the first block."""
        session.unsubscribe()

    def attach(self) -> None:
        self._session.subscribe()

    def detach(self) -> None:
        self._session.unsubscribe()

    def on_step_end(self, loss: torch.Tensor) -> None:
        self._run.log(samples=self.training.spec.batch)

    def close(self) -> dict[str, float]:
        faults = self._session.faults
        self._run.close()
        if faults:
            raise RuntimeError(f"probes of Ammeter failed: {faults}; see its warning above")
        return own_record(self._folder, self._young_steps)


class AmmeterLight(Ammeter):
    name = "ammeter, preset light"
    coverage = Coverage("within budget", NOT_PROVIDED, "forward, backward", "each step")
    preset = "light"


class AmmeterFull(Ammeter):
    name = "ammeter, preset full"
    coverage = Coverage("each step", "each step", "forward, backward", "each step")
    preset = "full"


PRESETS: tuple[type[Ammeter], ...] = (Ammeter, AmmeterLight, AmmeterFull)


class Settled(Ammeter):
    """A preset that trains watched before its first block: a young run is read more often and follows all calls."""

    settling_steps = 80

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self._young_steps = self.settling_steps if training.spec.shape != TINY else 2
        self.attach()
        training.peer = self
        try:
            training.calibrate(self._young_steps)
        finally:
            training.peer = None
            self.detach()


class SettledDefault(Settled): ...


class SettledLight(Settled, AmmeterLight): ...


class SettledFull(Settled, AmmeterFull): ...


SETTLED: tuple[type[Settled], ...] = (SettledDefault, SettledLight, SettledFull)


def own_record(folder: Path, first: int = 0) -> dict[str, float]:
    """What the journals below a folder say of Ammeter from a step on.

    Returns:
        Shares of step time spent inside Ammeter, median and mean; shares of steps with norms and with full statistics
        of gradients.
    """
    places = [list(SCALARS).index(name) for name in ("overhead_seconds", "step_seconds", "grad_norm", "grad_absmax")]
    rows = [
        np.frombuffer(entry.frame.values, "<f4")[places]
        for run in folder.iterdir()
        for stream in journal.streams(run)
        for entry in journal.read(stream)
        if isinstance(entry.frame, Steps) and entry.frame.step >= first
    ]
    costs = [(float(overhead), float(seconds)) for overhead, seconds, *_ in rows if overhead >= 0 and seconds > 0]
    if not costs:
        raise RuntimeError(f"no row in {folder} has overhead_seconds and step_seconds")
    overhead, total = (sum(column) for column in zip(*costs, strict=True))
    norms, statistics = columns.measured(np.array(rows))[:, 2:].mean(axis=0).tolist()
    read = {"norms": norms, "statistics": statistics}
    return {"overhead": median(cost / seconds for cost, seconds in costs), "mean_overhead": overhead / total, **read}
