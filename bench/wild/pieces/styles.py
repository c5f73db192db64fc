"""Styles of programs: the same training, arranged as a script, a class, closures, callbacks and others.

An arrangement is a template with slots. `@iteration` is one step; `#@` lines are for the recorder and the attachment.
"""

from __future__ import annotations

from bench.wild.pieces.frameworks import FRAMEWORKS
from bench.wild.pieces.style import ACCUMULATED, Style

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
    "callbacks": Style(_CALLBACKS, prefix="$engine.", held_out=True, runs_steps=True),
    "functional": Style(_MAIN, held_out=True),
    "accumulation": Style(_MAIN, iteration=ACCUMULATED),
    "two-optimizers": Style(_SCRIPT, optimizers=2),
    "resume": Style(_RESUME, lives=2, counts_steps=False),
    "ranks": Style(_RANKS, ranks=2),
    "notebook": Style(_NOTEBOOK, held_out=True, counts_steps=False),
    **FRAMEWORKS,
}
