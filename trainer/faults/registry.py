"""Registry of faults. A fault is one function that breaks a Trainer in exactly one way.

The function's name is the name of the verdict that must find it, and its docstring describes the symptoms.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from train import Trainer

Break: TypeAlias = Callable[[Trainer], None]

ORIGIN_STEPS = 3
"""The agent looks for the origin of a persistent NaN in the steps that follow the first bad one."""

# Verdicts that no run on a CPU can show, and the reason.
GPU_ONLY = {
    "sdpa-math": "on the CPU attention with dropout has no other path, so there it is no finding",
    "misaligned-matmul": "only tensor cores are slow with such sizes, so without them it is no finding",
    "memory-not-saved": "its numbers come from the allocator of CUDA",
    "launch-bound": "NVML counts the time in which a GPU runs kernels",
}


@dataclass(frozen=True)
class Expected:
    """Requirements for the finding of a fault; the zoo in bench/ checks them.

    Attributes:
        names: from the broken model, the modules or tensors of which the finding names one.
        line_in: the function with the line that the finding names, as "module:function".
        symptom: the first sign of the fault: "" for its first step, "skipped" for the first skipped step since then,
            else the name of an event.
        within: steps from the first symptom to the verdict; with `counted`, readings or events.
        counted: a column or an event.
        life: "kept" for a fault that shows only in a run with checkpoints, "resumed" for a resumed run.
    """

    names: Callable[[Any], Sequence[object]] | None = None
    line_in: str = ""
    symptom: str = ""
    within: int = 1
    counted: str = ""
    life: str = ""


@dataclass(frozen=True)
class Fault:
    """One way to break a run, and the runs that it fits."""

    name: str
    breaks: Break
    first_step: int
    precisions: tuple[str, ...]
    optimizers: tuple[str, ...]
    expected: Expected = Expected()
    ranks: int = 1
    """Number of processes that torchrun must start."""
    against: tuple[str, ...] | None = None
    """Options of the baseline run, for a fault that shows only in a comparison."""

    @property
    def story(self) -> str:
        """Symptoms that a person sees, from the docstring."""
        return " ".join((self.breaks.__doc__ or "").split())


REGISTRY: dict[str, Fault] = {}


def fault(
    first_step: int = 0,
    precisions: tuple[str, ...] = ("fp16", "bf16", "fp32"),
    optimizers: tuple[str, ...] = ("adamw", "sgd"),
    expected: Expected = Expected(),
    ranks: int = 1,
    against: tuple[str, ...] | None = None,
) -> Callable[[Break], Break]:
    """Registers a function as a fault, under its name with hyphens."""

    def register(breaks: Break) -> Break:
        name = breaks.__name__.replace("_", "-")
        REGISTRY[name] = Fault(name, breaks, first_step, precisions, optimizers, expected, ranks, against)
        return breaks

    return register
