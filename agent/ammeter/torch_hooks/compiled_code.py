"""Keeps torch.compile from tracing callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.compiler import disable

from ammeter.torch_hooks.dynamo import compiling, skip


def uncompiled(call: Callable[..., None]) -> Callable[..., None]:
    """Returns the same call, which torch.compile never traces.

    Outside compiled regions the extra cost is negligible.
    """
    hidden: Callable[..., None] = disable(call)  # type: ignore[no-untyped-call]
    if compiling is None:
        return hidden
    compile_callback = compiling

    def select(*args: Any) -> None:
        (call if compile_callback() is None else hidden)(*args)

    skip(select)
    return select
