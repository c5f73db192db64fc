"""Ends a run with poisoned weights, the one deliberate exception to "never fails"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ammeter.guards.baseline_comparison import Baseline, BaselineComparison, baseline_for
from ammeter.guards.stream_verdicts import StreamVerdicts
from ammeter.guards.verdict_names import known
from ammeter.verdicts.framework.finding import Finding
from ammeter.wire.frames import Frame

if TYPE_CHECKING:
    import torch

    from ammeter.guards.runner import GuardRunner, SavedCheckpoint

POISONED = ("nonfinite-weights", "scale-underflowed")
"""Verdicts after which every further step is wasted.

No batch and no loss scale repairs the weights.
"""


class Stopped(Exception):
    """Raised when a guard has ended the run.

    Attributes:
        verdict: id of the verdict that ended the run.
        step: the step at whose boundary the guard acted.
        checkpoint: path to continue from, if known; one of the program's own has only its last folder and its name.
    """

    def __init__(self, finding: Finding, step: int, checkpoint: SavedCheckpoint | None) -> None:
        self.finding, self.verdict, self.step = finding, finding.verdict, step
        self.checkpoint = checkpoint.path if checkpoint else None
        remedy = (
            f"Go back to {checkpoint.path}, written after {checkpoint.step} steps."
            if checkpoint
            else "This run has written no complete checkpoint before that step."
        )
        super().__init__(f"{finding.verdict} at step {step}: {finding.title}. {remedy}")


class Stop:
    """Raises ammeter.Stopped at the step boundary when one of its verdicts opens.

    scaler.update() raises it if there is a scaler, else the first call of the next step: zero_grad(), the model,
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
        self._baseline: Baseline | None = None

    def prepare(self, tags: Mapping[str, Any], root: Path) -> None:
        """Reads the given baseline, else that of the run's tags, from the runs in `root`.

        Raises ValueError if a baseline is needed and does not exist.
        """
        self._baseline = baseline_for(self, self.verdicts, self.baseline, tags, root)

    def attach(self, runner: GuardRunner) -> None:
        self._runner = runner
        folder = runner.session.journal.folder
        comparison = None if self._baseline is None else BaselineComparison(self._baseline, self.verdicts, folder)
        self._stream_verdicts = StreamVerdicts(self.verdicts, comparison=comparison)

    def before_scale(self, scaler: torch.amp.GradScaler) -> None:
        """Leaves the fast path before a step at a scale without an inverse.

        Such a step poisons the weights.
        """
        from ammeter.guards.runner import MAX_UNINVERTIBLE_SCALE, known_scale

        scale = known_scale(scaler)
        if scale is not None and scale <= MAX_UNINVERTIBLE_SCALE:
            self._runner.session.fast_path.leave()

    def receive_frames(self, frames: Sequence[Frame], last: bool = False) -> None:
        runner = self._runner
        for finding in self._stream_verdicts.judge(frames, last=last):
            if last:
                return
            checkpoint = runner.newest_checkpoint_before(finding.first_step, finite=finding.verdict in POISONED)
            stopped = Stopped(finding, runner.step, checkpoint)
            runner.emit(self, "stopped", finding.title, verdict=finding.verdict, to=stopped.checkpoint)
            runner.stop_run(stopped)
            return
