"""Finds the line of the user's program that led to a call."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType, TracebackType


def line() -> str:
    """Returns 'file.py:12' of the innermost place in the program's own code, or ''. See place()."""
    return written(spot())


Spot = tuple[str, int]
"""File and line of a call. It costs less than its text, for calls whose line is rarely needed."""


def spot() -> Spot | None:
    """Returns the innermost line of the program's own code that is in a file; see place()."""
    frame = None if _is_unknown else _own(sys._getframe(1))
    while frame is not None and frame.f_code.co_filename.startswith("<"):
        frame = _own(frame.f_back)
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def written(at: Spot | None) -> str:
    """Returns 'file.py:12' of a spot, or ''."""
    return "" if at is None else f"{_short(at[0])}:{at[1]}"


Place = tuple[CodeType | None, int, CodeType | None, int]
"""Code and instruction of a call and of its caller. Instructions are needed because one line may run backward for
several losses."""

NOWHERE: Place = (None, 0, None, 0)


def place() -> Place:
    """Returns the innermost place in the program's own code.

    Frames of frameworks that call on its behalf, such as Lightning and accelerate, and of Python are skipped.
    """
    if _is_unknown:
        return NOWHERE
    frame = _own(sys._getframe(1))
    if frame is None:
        return NOWHERE
    outer = _own(frame.f_back)
    if outer is None:
        return frame.f_code, frame.f_lasti, None, 0
    return frame.f_code, frame.f_lasti, outer.f_code, outer.f_lasti


@contextmanager
def unknown() -> Iterator[None]:
    """Makes all places unknown, for callbacks that run later than the call that they concern."""
    global _is_unknown
    _is_unknown = True
    try:
        yield
    finally:
        _is_unknown = False


_is_unknown = False


def name_of(place: Place) -> str:
    """Returns 'file.py:12' of a place, without the folder."""
    code, at, *_ = place
    if code is None:
        return "unknown"
    number = next((line for begin, end, line in code.co_lines() if begin <= at < end and line), code.co_firstlineno)
    return f"{os.path.basename(code.co_filename)}:{number}"


def line_at(place: Place) -> str:
    """Returns 'file.py:12' of a place, as line() does, or ''."""
    code, *_ = place
    return "" if code is None else f"{_short(code.co_filename)}:{name_of(place).rpartition(':')[2]}"


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
    """Whether a file belongs to Ammeter, torch, Python or a framework, not to the program."""
    if path.startswith((_OURS, _torch_folder(), "<frozen", "<eval_with_key")):
        return True
    if f"-packages{os.sep}" in path:
        package, _, file = path.rpartition(f"-packages{os.sep}")[2].partition(os.sep)
        return package in _FRAMEWORKS or (package == "transformers" and file.startswith("trainer"))
    return path.startswith(_PYTHONS)


def line_in(trace: TracebackType | None) -> str:
    """Returns 'file.py:12' of a traceback's innermost line outside torch and Ammeter, or ''."""
    frames = [(frame, number) for frame, number in traceback.walk_tb(trace) if not _inside(frame.f_code.co_filename)]
    return written((frames[-1][0].f_code.co_filename, frames[-1][1])) if frames else ""


def line_of(stack: Sequence[str]) -> str:
    """Returns 'file.py:12' of the innermost entry outside torch and Ammeter of a formatted stack, or ''."""
    for entry in reversed(stack):
        found = _ENTRY.match(entry)
        if found and not _inside(found[1]):
            return written((found[1], int(found[2])))
    return ""


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


_ENTRY = re.compile(r'\s*File "(.+)", line (\d+)')
"""The beginning of an entry of traceback.format_stack()."""

_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_PYTHONS = os.path.dirname(os.__file__) + os.sep
_FRAMEWORKS = frozenset(
    {
        *("accelerate", "apex", "composer", "deepspeed", "fastai", "ignite", "keras", "lightning", "lightning_fabric"),
        *("lightning_utilities", "mmengine", "pytorch_lightning", "torch", "torch_xla"),
    }
)
"""Frameworks that call backward() for a program; the frame that names the loss is further out."""

_between: dict[str, bool] = {}
