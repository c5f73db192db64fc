"""Which line of the user's program led here."""

from __future__ import annotations

import os
import sys
import traceback
from types import CodeType, FrameType, TracebackType


def line() -> str:
    """'file.py:12' of the innermost frame that is neither torch's nor ours; '' when there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _inside(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else _place(frame, frame.f_lineno)


Place = tuple[CodeType | None, int, CodeType | None, int]
"""Code and instruction of a call, and of the call that led there: one line may go back for several losses."""

NOWHERE: Place = (None, 0, None, 0)


def place() -> Place:
    """Where the program's own code led here, past frameworks that call for it, such as Lightning and accelerate."""
    frame = _own(sys._getframe(1))
    if frame is None:
        return NOWHERE
    outer = _own(frame.f_back)
    if outer is None:
        return frame.f_code, frame.f_lasti, None, 0
    return frame.f_code, frame.f_lasti, outer.f_code, outer.f_lasti


def name_of(place: Place) -> str:
    """'file.py:12', without the folder."""
    code, at, *_ = place
    if code is None:
        return "unknown"
    number = next((line for begin, end, line in code.co_lines() if begin <= at < end and line), code.co_firstlineno)
    return f"{os.path.basename(code.co_filename)}:{number}"


def _own(frame: FrameType | None) -> FrameType | None:
    while frame is not None:
        path = frame.f_code.co_filename
        between = _between.get(path)
        if between is None:
            between = _between[path] = _is_between(path)
        if not between:
            return frame
        frame = frame.f_back
    return None


def _is_between(path: str) -> bool:
    """Whether a file's code calls on somebody else's behalf: ours, torch's, Python's own, a framework's."""
    if path.startswith((_OURS, _torch_folder(), "<frozen", "<eval_with_key")):
        return True
    if f"-packages{os.sep}" in path:
        return path.rpartition(f"-packages{os.sep}")[2].partition(os.sep)[0] in _FRAMEWORKS
    return path.startswith(_PYTHONS)


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


_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_PYTHONS = os.path.dirname(os.__file__) + os.sep
_FRAMEWORKS = frozenset(
    {
        *("accelerate", "apex", "composer", "deepspeed", "fastai", "ignite", "keras", "lightning", "lightning_fabric"),
        *("lightning_utilities", "mmengine", "pytorch_lightning", "torch", "torch_xla"),
    }
)
"""What calls backward() for a program, which has said where the loss comes from further out."""

_between: dict[str, bool] = {}
