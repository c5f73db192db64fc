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
from torch._dynamo.decorators import skip
from torch.compiler import disable

from ammeter.redaction import text
from ammeter.torch_hooks.patch import compiling

log = logging.getLogger("ammeter")


class Guarded:
    """Makes callbacks safe: each is timed, never raises, and returns at once when inactive.

    Attributes:
        faults: probe name -> number of failures.
        thread: ident of the training thread.
    """

    def __init__(self) -> None:
        self.faults: dict[str, int] = {}
        self.thread = get_ident()
        self._overhead = 0.0
        self._off = False
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
        join = self._guarded if any_thread else self._guarded_here

        def safe(call: Callable[..., None]) -> Callable[..., None]:
            guarded: Any = join([(name, call)])
            guarded.part, guarded.join = (name, call), join  # for patch.together
            return guarded  # type: ignore[no-any-return]

        return safe

    def lightly(self, name: str, call: Callable[..., None], *, any_thread: bool = False) -> Callable[..., None]:
        """Returns a cheaper guard() for callbacks of the fast path.

        The callback must not run within another one, must not touch a device, and must not ask anything of a tensor
        that a function mode of the program could observe.
        """

        def light(*args: Any) -> None:
            if compiling and compiling() is not None:
                hidden(*args)
            elif get_ident() == self.thread or (any_thread and not self._off):
                began = perf_counter()
                try:
                    call(*args)
                except Exception as error:  # noqa: BLE001 - as in guard
                    self._fault_in(name, error)
                finally:
                    self._overhead += perf_counter() - began

        skip(light)
        hidden: Callable[..., None] = disable(light)  # type: ignore[no-untyped-call]
        return light if compiling else hidden

    def _guarded_here(self, parts: Sequence[tuple[str, Callable[..., None]]]) -> Callable[..., None]:
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
            if self._off or (_CUDA and _capturing()) or not (any_thread or get_ident() == self.thread):
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
                self._fault_in(name, error)
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
                    self._fault_in(name, error)

    def _call_unseen(self, parts: Sequence[tuple[str, Callable[..., None]]], args: tuple[Any, ...]) -> None:
        """Runs the callbacks with function modes disabled: a mode observes the program, not Ammeter."""
        with torch._C.DisableTorchFunction():
            self._call(parts, args)

    def _fault_in(self, name: str, error: Exception) -> None:
        try:
            self._fault(name, error)
        except Exception:  # noqa: BLE001 - no frame is left to tell it in
            self.faults[name] = 1

    def switch_off(self) -> None:
        """Stops all reading and writing at once, for a forked child process."""
        self._off, self.thread = True, -1

    def replay_call(self, calls: Iterable[Callable[..., None]], *args: Any) -> None:
        """Repeats a call for callbacks that were activated after the call had begun."""
        outermost, self._inside = not self._inside, True  # the time is already counted
        try:
            for call in calls:
                call(*args)
        finally:
            self._inside = not outermost

    def _fault(self, name: str, error: Exception) -> None:
        """Switches off a probe and logs its first failure.

        Must work near the recursion limit and when memory is short.
        """
        known, self.faults[name] = name in self.faults, self.faults.get(name, 0) + 1
        if known:
            return
        try:
            said = str(error)
        except Exception:  # noqa: BLE001 - an error of the program's own class, which fails to say what it is
            said = ""
        told = text(f"{type(error).__name__}: {said}", 500)
        self.failed(name, told)
        with suppress(Exception):  # the program's log handler may raise
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(where.filename)}:{where.lineno}"
            log.warning(
                "ammeter: its %s probe failed and is switched off (%s, %s); training goes on", name, told, place
            )


def _capturing() -> bool:
    """Whether a CUDA graph is being captured; Ammeter's operations would become part of it."""
    started: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return started and torch.cuda.is_current_stream_capturing()


_function_modes: Callable[[], int] = torch._C._len_torch_function_stack

_CUDA = torch.version.cuda is not None or torch.version.hip is not None
