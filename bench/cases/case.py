"""A case: a thread of a public issue tracker, rebuilt as a program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Case:
    """A thread and the program that shows what its people met.

    Attributes:
        thread: Repository and number, such as "pytorch/pytorch#99640".
        program: Path below `programs`, such as "loss_scale/pytorch_99640.py".
        title: What went wrong, in one line.
        verdicts: Ids, any of which names the fault.
        fix: Regular expressions; the cause and fix of the naming finding must match all. They are what the thread
            found, not what Ammeter says.
        ranks: Processes, started by torchrun if there are several.
        seconds: Time limit of the program on an idle machine.
        limitation: What of the thread the CPU cannot rebuild.
    """

    thread: str
    program: str
    title: str
    verdicts: tuple[str, ...]
    fix: tuple[str, ...]
    ranks: int = 1
    seconds: int = 60
    limitation: str = ""

    @property
    def path(self) -> Path:
        return PROGRAMS / self.program

    @property
    def url(self) -> str:
        return "https://github.com/" + self.thread.replace("#", "/issues/")
