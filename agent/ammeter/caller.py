"""Which line of the user's program led here."""

from __future__ import annotations

import os
import sys
import traceback
from types import FrameType, TracebackType


def line() -> str:
    """'file.py:12' of the innermost frame that is neither torch's nor ours; '' when there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _inside(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else _place(frame, frame.f_lineno)


def line_in(trace: TracebackType | None) -> str:
    """'file.py:12' of the innermost line in an error's traceback that is neither torch's nor ours; '' without one."""
    theirs = [(frame, number) for frame, number in traceback.walk_tb(trace) if not _inside(frame.f_code.co_filename)]
    return _place(*theirs[-1]) if theirs else ""


def _place(frame: FrameType, number: int) -> str:
    return f"{_short(frame.f_code.co_filename)}:{number}"


def _inside(path: str) -> bool:
    return path.startswith((_OURS, _torch_folder(), "<"))


def _torch_folder() -> str:
    torch = sys.modules.get("torch")
    return os.path.dirname(torch.__file__ or _OURS) + os.sep if torch else _OURS


def _short(path: str) -> str:
    try:
        relative = os.path.relpath(path)
    except OSError:  # the working directory is gone
        return path
    return path if relative.startswith("..") else relative


_OURS = os.path.dirname(__file__) + os.sep
