"""Keeps torch.compile from tracing callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._C._dynamo import eval_frame
from torch._dynamo.decorators import skip
from torch.compiler import disable

compiling: Callable[[], Any] | None = getattr(eval_frame, "get_eval_frame_callback", None)
"""Returns the callback of torch.compile for new frames, None outside its regions. Older versions of torch lack it."""


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
