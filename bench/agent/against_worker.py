"""Trains blocks of steps for bench.agent.against, watched by the agent of one checkout or unwatched.

    python -m bench.agent.against_worker watched|bare SPEC SEED FOLDER CHECKOUT

Reads the number of steps of each block from stdin and prints the block's seconds per step. Everything but the agent is
this checkout's code.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import ammeter
from bench.agent.comparison import CALIBRATION_STEPS, seconds_per_step
from bench.agent.peers import Peer
from bench.agent.training import LONG_STEPS, SHORT_STEPS, Training

SPECS = {"long": LONG_STEPS[0], "short": SHORT_STEPS[0]}


class Watched(Peer):
    """The agent's default preset, through its public functions."""

    name = "ammeter"

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self._run = ammeter.watch(training.model, training.optimizer, training.scaler, dir=folder, name="bench")

    def on_step_end(self, loss: torch.Tensor) -> None:
        self._run.log(samples=self.training.spec.batch)

    def close(self) -> dict[str, float]:
        self._run.close()
        return {}


def main(mode: str, spec: str, seed: str, folder: str, checkout: str) -> None:
    if not Path(ammeter.__file__).resolve().is_relative_to(checkout):
        sys.exit(f"the agent of {ammeter.__file__} was imported instead of that in {checkout}")
    training = Training(SPECS[spec], int(seed))
    training.calibrate(CALIBRATION_STEPS)
    peer = Watched(training, Path(folder)) if mode == "watched" else None
    training.peer = peer
    for line in sys.stdin:
        print(seconds_per_step(training, int(line)), flush=True)
    if peer:
        peer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
