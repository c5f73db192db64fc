"""What each verdict means for a run that is still going on: whether to stop it, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

When = Literal["stop", "soon", "later"]


class Urgency(NamedTuple):
    """How long a run may go on with a fault.

    Attributes:
        when: `stop`: what it does from here on is lost, or does harm. `soon`: it trains, but worse than it should.
            `later`: the training itself is not concerned.
        harm: The reason, as the end of a sentence.
        leads_astray: Whether applied steps change the weights wrongly, though they stay finite.
        then: What to do after that, where it does not follow from the weights and the checkpoints.
        opening: How the sentence begins for a run that is still running, where it does not follow from `when`.
    """

    when: When
    harm: str
    leads_astray: bool = False
    then: str = ""
    opening: str = ""


_COSTS_TIME = Urgency("later", "this costs time, not accuracy")
_SETTLES = Urgency("later", "the new scale settles after a few skipped steps")
_ROUNDED = "small changes are rounded away at every step"
_UNSCALED = "small gradients become zero in float16"
_RESTART = "Mend it and start the run again"
_KEEP = "Let the run go on"
_UNLESS_ACCEPTABLE = "Stop the run, unless you can accept this"
_RESUME_AGAIN = "Mend the resumption, and resume again from the checkpoint that it loaded."
_NOT_COMPARED = "this concerns the comparison, not the training"

URGENCY: Mapping[str, Urgency] = {
    "loss-not-scaled": Urgency("stop", "its steps are divided by the loss scale and change next to nothing"),
    "gradients-not-unscaled": Urgency("stop", "its steps use gradients multiplied by the loss scale", True),
    "update-between-optimizers": Urgency("soon", "when the scale changes, a step is divided by the wrong one"),
    "gradients-not-reset": Urgency("stop", "each step uses the gradients of earlier steps again", True),
    "mixed-scale-gradients": Urgency("stop", "its steps add up gradients of two scales", True),
    "dtype-switched": Urgency("soon", "its gradients are not exactly those of its loss"),
    "unsupported-op": Urgency("stop", "the error ends the program, unless that catches it", opening=_RESTART),
    "no-gradients": Urgency("stop", "it does not train what it should"),
    "not-as-asked": Urgency("later", "it trains, but not in the precision that was asked for"),
    "autocast-scope": Urgency("soon", "backward() or the optimizer may compute in half precision"),
    "half-master-weights": Urgency("soon", _ROUNDED),
    "loss-in-half": Urgency("soon", "small differences of the loss are rounded away"),
    "sensitive-op-in-half": Urgency("soon", "the model trains on inaccurate numbers"),
    "scaler-disabled": Urgency("soon", _UNSCALED),
    "pointless-scaler": Urgency("later", "bfloat16 needs no scaler, which only costs time"),
    "scaler-not-restored": _SETTLES,
    "scaler-rebuilt": _SETTLES,
    "broken-in-reduction": Urgency("stop", "its steps fail in the reduction"),
    "ranks-disagree": Urgency("stop", "its ranks train different models", True),
    "clip-before-unscale": Urgency("soon", "its steps are far smaller than they should be"),
    "no-loss-scaling": Urgency("soon", _UNSCALED),
    "half-optimizer-state": Urgency("soon", _ROUNDED),
    "half-reduction": Urgency("soon", "the sum over the ranks is less accurate than each gradient"),
    "eps-underflow": Urgency("stop", "a division by zero makes NaN or Inf"),
    "masked-labels": Urgency("soon", "losses without targets teach nothing"),
    "rollout-mismatch": Urgency("soon", "it learns from samples of another policy"),
    "diverged": Urgency("stop", "it unlearns what it had learned", True),
    "kernel-nan": Urgency("stop", "what it computes is NaN or Inf"),
    "masked-row-nan": Urgency("stop", "what it computes is NaN"),
    "activation-overflow": Urgency("soon", "what exceeds float16 becomes Inf"),
    "scale-underflowed": Urgency("stop", "it cannot unscale its gradients any more"),
    "poisoned-buffers": Urgency("soon", "evaluation, and every checkpoint of it, gives NaN or Inf"),
    "nonfinite-loss": Urgency("stop", "a loss of NaN or Inf teaches nothing"),
    "nonfinite-gradient": Urgency("stop", "gradients with NaN or Inf teach nothing"),
    "nonfinite-weights": Urgency("stop", "no later step removes NaN or Inf from its weights"),
    "nonfinite-validation": Urgency("soon", "its evaluation says nothing, though its training is finite"),
    "resume-mismatch": Urgency("stop", "it continues without the state of its optimizer", then=_RESUME_AGAIN),
    "scale-collapse": Urgency("stop", "it skips every step"),
    "gradient-spike": Urgency("soon", "one batch may undo what it had learned"),
    "sign-flip": Urgency("soon", "its steps undo each other"),
    "overflow-storm": Urgency("soon", "the steps that it skips are lost"),
    "scheduler-ahead": Urgency("soon", "its learning rate follows steps that were not made"),
    "lopsided-step": Urgency("soon", "its optimizers make different numbers of steps"),
    "gradient-underflow": Urgency("soon", "most of its gradient is lost in float16"),
    "lost-updates": Urgency("soon", "updates are rounded away"),
    "stagnation": Urgency("stop", "it does not learn"),
    "fp32-fallback": _COSTS_TIME,
    "sdpa-math": _COSTS_TIME,
    "misaligned-matmul": _COSTS_TIME,
    "cast-churn": _COSTS_TIME,
    "activation-casts": _COSTS_TIME,
    "launch-bound": _COSTS_TIME,
    "slower-than-fp32": _COSTS_TIME,
    "memory-not-saved": Urgency("later", "this costs memory, not accuracy"),
    "stale-stack": Urgency("later", "it trains, without the fixes of newer versions"),
    "not-comparable": Urgency("later", _NOT_COMPARED),
    "validation-drift": Urgency("soon", "its model is worse than that of the baseline", opening=_UNLESS_ACCEPTABLE),
    "not-reproducible": Urgency("later", _NOT_COMPARED),
    "checkpoint-exposed": Urgency("later", "this concerns its checkpoints, not its training"),
    "checkpoint-incomplete": Urgency("soon", "what its checkpoints lack is only in its memory", opening=_KEEP),
    "checkpoint-stale": Urgency("soon", "all work since its last checkpoint is only in its memory", opening=_KEEP),
    "run-stalled": Urgency("stop", "it completes no steps", opening="Note where it waits, then stop the run"),
    "run-lost": Urgency("stop", "it ended before it was done", opening="Start it again"),
    "agent-blind": Urgency("later", "only what Ammeter records of it is incomplete"),
}
"""Verdict -> its urgency."""
