"""Styles of programs: the same training, arranged as a script, a class, closures, callbacks and others.

An arrangement is a template with slots. `@iteration` is one step; `#@` lines are for the recorder and the attachment.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """

    text: str
    prefix: str = ""
    iteration: str = WHOLE
    held_out: bool = False
    ranks: int = 1
    lives: int = 1
    optimizers: int = 1
    counts_steps: bool = True
    """Whether the report's steps are those of the program, from its beginning."""


_SCRIPT = """
@build
#@attach
<<for $step in range($steps):
    @iteration
~~$step = -1
while $step + 1 < $steps:
    $step += 1
    @iteration
>>
@end
"""

_MAIN = """
def $main():
    @build
    #@attach
    for $step in range($steps):
        @iteration
    @end


if __name__ == "__main__":
    $main()
"""

_CLASS = """
class $Trainer:
    def __init__(self):
        @build
        #@attach

    def $advance(self, $step):
        @iteration

    def $fit(self):
        for $step in range($steps):
            self.$advance($step)
        @end


$trainer = $Trainer()
$trainer.$fit()
"""

_CLOSURES = """
def $prepare():
    @build
    #@attach

    def $advance($step):
        nonlocal $objects
        @iteration

    def $finish():
        @end

    return $advance, $finish


$go, $stop = $prepare()
for $number in range($steps):
    $go($number)
$stop()
"""

_CALLBACKS = """
class $Engine:
    def __init__(self, *callbacks):
        self.$callbacks = callbacks

    def $run(self):
        for $step in range($steps):
            for $callback in self.$callbacks:
                $callback(self, $step)


def $compute($engine, $step):
    @first_half


def $apply($engine, $step):
    @second_half


$engine = $Engine($compute, $apply)
@build
#@attach
$engine.$run()
@end
"""

_NOTEBOOK = """
for $session in range(2):
    @build
    #@attach
    for $step in range($steps):
        @iteration
@end
"""

_RESUME = """
@build
$begin = 0
if os.path.exists($path):
    @load
#@attach
for $step in range($begin, $begin + $steps // 2):
    @iteration
@save_last
@end
"""

_RANKS = """
def $main():
    dist.init_process_group("gloo")
    @build
    #@attach
    for $step in range($steps):
        @iteration
    @end
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    $main()
"""

STYLES = {
    "script": Style(_SCRIPT),
    "main": Style(_MAIN),
    "class": Style(_CLASS, prefix="self."),
    "closures": Style(_CLOSURES, held_out=True),
    "callbacks": Style(_CALLBACKS, prefix="$engine.", held_out=True),
    "functional": Style(_MAIN, held_out=True),
    "accumulation": Style(_MAIN, iteration=ACCUMULATED),
    "two-optimizers": Style(_SCRIPT, optimizers=2),
    "resume": Style(_RESUME, lives=2, counts_steps=False),
    "ranks": Style(_RANKS, ranks=2),
    "notebook": Style(_NOTEBOOK, held_out=True, counts_steps=False),
}
