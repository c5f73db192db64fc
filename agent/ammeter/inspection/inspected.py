"""What the examination of a checkpoint found."""

from __future__ import annotations

from dataclasses import dataclass, field

from ammeter.preparation.contents import Contents

TORCH, DISTRIBUTED, SAFETENSORS = "torch.save", "torch.distributed.checkpoint", "safetensors"


@dataclass
class Inspected:
    """The state of a checkpoint.

    Attributes:
        format: TORCH, DISTRIBUTED or SAFETENSORS.
        bytes: the size of its files.
        broken: why it is not whole, '' if it is.
        unread: why it could not be examined, '' if it could: it has objects that only running their code restores.
        tensors: tensors whose numbers were read.
        nonfinite: names of those with NaN or Inf.
        contents: what it contains, None if that could not be read.
        weights: name -> shape of each tensor outside the state of an optimizer.
    """

    format: str
    bytes: int
    broken: str = ""
    unread: str = ""
    tensors: int = 0
    nonfinite: list[str] = field(default_factory=list)
    contents: Contents | None = None
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def is_sound(self) -> bool:
        """Whether it is whole and every number is finite."""
        return not self.broken and not self.unread and not self.nonfinite

    @property
    def reason(self) -> str:
        """Why the checkpoint can be loaded, or not."""
        if self.broken or self.unread:
            return self.broken or self.unread
        if self.nonfinite:
            return f"{len(self.nonfinite)} of {self.tensors} tensors are not finite, {self.nonfinite[0]} first"
        return f"{self.tensors} tensors, all finite"

    def add(self, name: str, is_finite: bool) -> None:
        """Adds a tensor that was read."""
        self.tensors += 1
        if not is_finite:
            self.nonfinite.append(name)
