"""The parts of torch.compile that patches need, without importing torch._dynamo.

That import takes about a second, and a program without an optimizer never needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch._C._dynamo import eval_frame as _typed_eval_frame

eval_frame: Any = _typed_eval_frame  # its names depend on the version of torch

compiling: Callable[[], Any] | None = getattr(eval_frame, "get_eval_frame_callback", None)
"""Returns the callback of torch.compile for new frames, None outside its regions. Older versions of torch lack it."""


def skip_code(code: CodeType) -> None:
    """Does what torch._dynamo.eval_frame.skip_code does: frames of this code run as they are."""
    if hasattr(eval_frame, "skip_code"):  # until torch 2.6
        eval_frame.skip_code(code)
    elif hasattr(eval_frame, "set_code_exec_strategy"):
        actions = eval_frame._FrameAction
        strategy = eval_frame._FrameExecStrategy(actions.SKIP, actions.DEFAULT)
        eval_frame.set_code_exec_strategy(code, strategy)
    else:
        torch._dynamo.eval_frame.skip_code(code)


def skip(call: Any) -> None:
    """Keeps a function from being compiled, but not those that it calls, like torch._dynamo.decorators.skip."""
    skip_code(call.__code__)
    call._torchdynamo_disable = True


def frames_compiled() -> int:
    """Returns the number of frames that torch.compile has seen, 0 before it is imported."""
    return int(getattr(sys.modules.get("torch._dynamo.convert_frame"), "FRAME_COUNTER", 0))
