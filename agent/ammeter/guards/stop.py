"""Ends a run with poisoned weights, the one deliberate exception to "never fails"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ammeter.guards import baseline_verdicts
from ammeter.guards.journal_follower import Judging
from ammeter.guards.verdict_names import known
from ammeter.verdicts.framework.finding import Finding
from ammeter.wire.frames import Frame

if TYPE_CHECKING:
    import torch

    from ammeter.guards.runner import GuardRunner, Saved

POISONED = ("nonfinite-weights", "scale-underflowed")
"""Verdicts after which every further step is wasted.

No batch and no loss scale repairs the weights.
"""


class Stopped(Exception):
    """Raised when a guard has ended the run.

    verdict: reason. step: step at which the guard saw it. checkpoint: path to continue from, if known; one of the
    program's own is given by its last folder and its name.
    """

    def __init__(self, finding: Finding, step: int, back: Saved | None) -> None:
        self.finding, self.verdict, self.step = finding, finding.verdict, step
        self.checkpoint = back.path if back else None
        there = (
            f"Go back to {back.path}, written after {back.step} steps."
            if back
            else "No complete checkpoint from before it was seen in this run."
        )
        super().__init__(f"{finding.verdict} at step {step}: {finding.title}. {there}")


class Stop:
    """Raises ammeter.Stopped at the step boundary when one of its verdicts opens.

    It leaves scaler.update() if there is a scaler, else the first call of the next step: zero_grad(), the model,
    backward() or step(). The final record of the journal is written by then. On the CPU this is the step whose numbers
    show the fault; on a device, and if rows wait for run.log, one or more steps later.

    verdicts: ids from docs/verdicts.md. baseline: path, id or name of the run for verdicts that compare runs; by
    default the tag `baseline` of watch(). Raises ValueError for a verdict that does not exist or that no guard can act
    on; watch() raises it if a needed baseline has no journal.
    """

    name = "stop"

    def __init__(self, verdicts: Sequence[str] = POISONED, baseline: str | Path | None = None) -> None:
        self.verdicts = known(verdicts)
        self.baseline = baseline
        self._held: baseline_verdicts.Held | None = None

    def prepare(self, tags: Mapping[str, Any], root: Path) -> None:
        """Reads the given baseline, else that of the run's tags, from the runs in `root`.

        Raises ValueError if a baseline is needed and does not exist.
        """
        self._held = baseline_verdicts.held_for(self, self.verdicts, self.baseline, tags, root)

    def attach(self, duty: GuardRunner) -> None:
        self._duty = duty
        folder = duty.session.journal.folder
        compared = baseline_verdicts.Beside(self._held, self.verdicts, folder) if self._held is not None else None
        self._judging = Judging(self.verdicts, beside=compared)

    def scaling(self, scaler: torch.amp.GradScaler) -> None:
        """Leaves the fast path before a step at a scale without an inverse.

        Such a step poisons the weights.
        """
        from ammeter.guards.runner import NO_INVERSE, known_scale

        scale = known_scale(scaler)
        if scale is not None and scale <= NO_INVERSE:
            self._duty.session.leave_fast_path()

    def heard(self, frames: Sequence[Frame], last: bool = False) -> None:
        duty = self._duty
        for finding in self._judging.hear(frames, last=last):
            if last:
                return
            back = duty.newest_before(finding.first_step, finite=finding.verdict in POISONED)
            stopped = Stopped(finding, duty.step, back)
            duty.tell(self, "stopped", finding.title, verdict=finding.verdict, to=stopped.checkpoint)
            duty.end(stopped)
            return
