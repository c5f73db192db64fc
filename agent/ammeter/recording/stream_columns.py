"""The columns of a stream, which may grow while it is recorded."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from ammeter.recording.row import Layout
from ammeter.wire.frames import STATS, Hello, Schema, Tensor

if TYPE_CHECKING:
    from ammeter.wire.frames import Frame


class StreamColumns:
    """The schema of a stream. A hello frame announces each new schema before its first row.

    Attributes:
        layout: positions of the present columns.
    """

    def __init__(self, hello: Hello, tensors: Sequence[Tensor]) -> None:
        self._hello = hello
        self.schema = Schema(stats=tuple(STATS), tensors=tuple(tensors))
        self.layout = self._announced = Layout(self.schema)
        self._builtin_scalars = len(self.schema.scalars)

    def hello(self) -> Hello:
        """Returns the hello frame with the present schema."""
        return msgspec.structs.replace(self._hello, schema=self.schema)

    def announce(self, frames: list[Frame]) -> Layout:
        """Returns the present layout; appends a hello frame if it is new."""
        layout = self.layout
        if layout is not self._announced:
            self._announced = layout
            frames.append(msgspec.structs.replace(self._hello, schema=layout.schema))
        return layout

    def add(self, names: Iterable[str], limit: int | None = None) -> Container[str]:
        """Adds scalar columns until the program has `limit` of its own, if given; returns all scalar columns."""
        new = [name for name in names if name not in self.layout.scalars]
        if limit is not None:
            new = new[: max(0, self._builtin_scalars + limit - len(self.schema.scalars))]
        if new:
            self._replace(msgspec.structs.replace(self.schema, scalars=(*self.schema.scalars, *new)))
        return self.layout.scalars

    def update_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Adds the columns of tensors that appeared since; the sequence only grows."""
        if len(tensors) != len(self.schema.tensors):
            self._replace(msgspec.structs.replace(self.schema, tensors=tuple(tensors)))

    def _replace(self, schema: Schema) -> None:
        self.schema = schema
        self.layout = Layout(schema)
