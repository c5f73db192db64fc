"""What a style of programs is, and the templates of one step.

A template has slots, such as `@forward`; `#@` lines are for the recorder and the attachment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FETCH = """
#@late
$clock[0] = $step
$x, $y = $batch($step)
"""

COMPUTE = """
@reset
@forward
@after_loss
@backward
"""

APPLY = """
#@gradients
@reduce
@unscale
#@unscaled
@clip
@step
#@stepped
@update
@schedule
@after_step
@evaluate
@save
#@step
"""

WHOLE = FETCH + COMPUTE + APPLY

WITH_CLOSURE = (
    FETCH
    + """
$last = []
def $closure():
    @reset
    @forward
    @after_loss
    @backward
    #@gradients
    @reduce
    #@unscaled
    @clip
    $last.append($loss)
    return $loss
$opt.step($closure)
$loss = $last[0]
@schedule
@after_step
@evaluate
@save
#@step
"""
)

ACCUMULATED = (
    """
#@late
@reset
$clock[0] = $step
for $micro in range(4):
    $x, $y = $batch(4 * $step + $micro)
    @forward
    $loss = $loss / 4
    @after_loss
    @backward
"""
    + APPLY
)


@dataclass(frozen=True)
class Style:
    """How a program is arranged.

    Attributes:
        text: The template, with `@build` and `@iteration`.
        prefix: Put before the names of the training's objects, such as `self.`.
        iteration: The template of one step.
        held_out: Whether only fresh draws use the style.
        ranks: Number of processes.
        lives: Number of processes after each other.
        optimizers: Number of optimizers.
        counts_steps: Whether the report's steps are those of the program, from its beginning.
        precisions: The precisions that such a program can have; empty for all.
        slots: The slots that the template has; empty for all. A fault needs all slots that it changes.
        texts: What a slot or a macro holds in such a program, instead of what it holds in others.
            Ammeter counts from the next step on if a late `watch()` comes inside of it.
        runs_steps: Whether something else calls the parts of a step, so that they share only attributes.
    """

    text: str
    prefix: str = ""
    iteration: str = WHOLE
    held_out: bool = False
    ranks: int = 1
    lives: int = 1
    optimizers: int = 1
    counts_steps: bool = True
    precisions: tuple[str, ...] = ()
    slots: frozenset[str] = frozenset()
    texts: Mapping[str, str] = field(default_factory=dict)
    runs_steps: bool = False
