"""Catches faults of Ammeter: counts them, logs once and switches off the probe."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from threading import get_ident
from time import perf_counter
from typing import Any

import torch
from torch.compiler import disable

from ammeter.redaction import text
from ammeter.torch_hooks.dynamo import compiling, skip

log = logging.getLogger("ammeter")

MAX_ERROR_CHARS = 500
"""Maximum length of an error message in a record; some errors print whole tensors."""


class Guarded:
    """Makes callbacks safe: each is timed, never raises, and returns at once when inactive.

    Attributes:
        faults: probe name -> number of failures.
        thread: ident of the training thread.
        off: whether reading and writing have ended.
    """

    def __init__(self) -> None:
        self.faults: dict[str, int] = {}
        self.thread = get_ident()
        self._overhead = 0.0
        self.off = False
        self._inside = False

    def failed(self, name: str, error: str) -> None:
        """Called at the first failure of a probe, which is then switched off."""

    def take_overhead(self) -> float:
        """Returns the seconds spent in Ammeter since the last call."""
        spent, self._overhead = self._overhead, 0.0
        return spent

    def charge(self, seconds: float) -> None:
        """Adds Ammeter time that no guard has measured."""
        self._overhead += seconds

    def guard(self, name: str, *, any_thread: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Makes a callback safe for torch: timed, never raising, never compiled, silent when off.

        Args:
            any_thread: if False, the callback concerns the training and runs only in the training thread.
        """
        join = self._guarded if any_thread else self._guarded_in_thread

        def safe(call: Callable[..., None]) -> Callable[..., None]:
            guarded: Any = join([(name, call)])
            guarded.part, guarded.join = (name, call), join  # for hook_points
            return guarded  # type: ignore[no-any-return]

        return safe

    def light_guard(self, name: str, call: Callable[..., None], *, any_thread: bool = False) -> Callable[..., None]:
        """Returns a cheaper guard() for callbacks of the fast path.

        The callback must not run within another one, must not touch a device, and must not ask anything of a tensor
        that a function mode of the program could observe.
        """

        def light(*args: Any) -> None:
            if compiling and compiling() is not None:
                hidden(*args)
            elif get_ident() == self.thread or (any_thread and not self.off):
                began = perf_counter()
                try:
                    call(*args)
                except Exception as error:  # noqa: BLE001 - as in guard
                    self.record_fault(name, error)
                finally:
                    self._overhead += perf_counter() - began

        skip(light)
        hidden: Callable[..., None] = disable(light)  # type: ignore[no-untyped-call]
        return light if compiling else hidden

    def _guarded_in_thread(self, parts: Sequence[tuple[str, Callable[..., None]]]) -> Callable[..., None]:
        return self._guarded(parts, any_thread=False)

    def _guarded(
        self, parts: Sequence[tuple[str, Callable[..., None]]], *, any_thread: bool = True
    ) -> Callable[..., None]:
        several = parts if len(parts) > 1 else None
        name, call = parts[0]

        def guarded(*args: Any) -> None:
            if compiling and compiling() is not None:
                hidden(*args)
                return
            if self.off or (_HAS_CUDA and _is_capturing()) or not (any_thread or get_ident() == self.thread):
                return
            outermost, self._inside = not self._inside, True
            began = perf_counter()
            try:
                if _function_modes():
                    self._call_unseen(parts, args)
                elif several is not None:
                    self._call(several, args)
                elif name not in self.faults:
                    call(*args)
            except Exception as error:  # noqa: BLE001 - the promise: no fault of ours reaches the training loop
                self.record_fault(name, error)
            finally:
                if outermost:
                    self._overhead += perf_counter() - began
                    self._inside = False

        skip(guarded)
        hidden: Callable[..., None] = disable(guarded)  # type: ignore[no-untyped-call]
        return guarded if compiling else hidden

    def _call(self, parts: Sequence[tuple[str, Callable[..., None]]], args: tuple[Any, ...]) -> None:
        for name, call in parts:
            if name not in self.faults:
                try:
                    call(*args)
                except Exception as error:  # noqa: BLE001 - as in guard
                    self.record_fault(name, error)

    def _call_unseen(self, parts: Sequence[tuple[str, Callable[..., None]]], args: tuple[Any, ...]) -> None:
        """Runs the callbacks with function modes disabled: a mode observes the program, not Ammeter."""
        with torch._C.DisableTorchFunction():
            self._call(parts, args)

    def record_fault(self, name: str, error: Exception) -> None:
        """Switches off a probe that failed, and logs its first failure; never raises."""
        try:
            self._record(name, error)
        except Exception:  # noqa: BLE001 - no stack frame is left to report it
            self.faults[name] = 1

    def switch_off(self) -> None:
        """Stops all reading and writing at once, for a forked child process."""
        self.off, self.thread = True, -1

    def replay_call(self, calls: Iterable[Callable[..., None]], *args: Any) -> None:
        """Repeats a call for callbacks that were activated after the call had begun."""
        outermost, self._inside = not self._inside, True  # the time is already counted
        try:
            for call in calls:
                call(*args)
        finally:
            self._inside = not outermost

    def _record(self, name: str, error: Exception) -> None:
        """Must work near the recursion limit and when memory is short."""
        is_known, self.faults[name] = name in self.faults, self.faults.get(name, 0) + 1
        if is_known:
            return
        try:
            message = str(error)
        except Exception:  # noqa: BLE001 - __str__ of the program's own class may raise
            message = ""
        description = text(f"{type(error).__name__}: {message}", MAX_ERROR_CHARS)
        self.failed(name, description)
        with suppress(Exception):  # the program's log handler may raise
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
            log.warning(
                "ammeter: its %s probe failed and is switched off (%s, %s); training goes on", name, description, place
            )


def _is_capturing() -> bool:
    """Whether a CUDA graph is being captured; Ammeter's operations would become part of it."""
    is_initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return is_initialized and torch.cuda.is_current_stream_capturing()


_function_modes: Callable[[], int] = torch._C._len_torch_function_stack

_HAS_CUDA = torch.version.cuda is not None or torch.version.hip is not None
