"""The only place where a fault of ours is caught: counted, told once, and the probe that had it is switched off."""

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
    """What makes callbacks of ours safe: each is timed, never raises, and is silent where it has nothing to look for.

    faults: name of a probe -> how often it failed. thread: the ident of the one that trains.
    """

    def __init__(self) -> None:
        self.faults: dict[str, int] = {}
        self.thread = get_ident()
        self._overhead = 0.0
        self._off = False
        self._inside = False

    def failed(self, name: str, error: str) -> None:
        """A probe has failed for the first time, and is switched off."""

    def take_overhead(self) -> float:
        """Seconds spent inside Ammeter since the last call."""
        spent, self._overhead = self._overhead, 0.0
        return spent

    def charge(self, seconds: float) -> None:
        """Counts time of ours that no guard has measured."""
        self._overhead += seconds

    def guard(self, name: str, *, any_thread: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Makes a callback of ours safe to hand to torch: timed, silent when off, never raising, never compiled.

        anywhere: false for what is about the training, and silent in every thread but the one that trains.
        """
        join = self._guarded if any_thread else self._guarded_here

        def safe(call: Callable[..., None]) -> Callable[..., None]:
            guarded: Any = join([(name, call)])
            guarded.part, guarded.join = (name, call), join  # for tap.together
            return guarded  # type: ignore[no-any-return]

        return safe

    def lightly(self, name: str, call: Callable[..., None], *, any_thread: bool = False) -> Callable[..., None]:
        """guard() for what is called in every step while nothing else is: never within another one, on the CPU, and
        asking nothing of a tensor that a function mode of the program could see."""

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
        """A function mode is about what the program asks of its tensors, not about what we do."""
        with torch._C.DisableTorchFunction():
            self._call(parts, args)

    def _fault_in(self, name: str, error: Exception) -> None:
        try:
            self._fault(name, error)
        except Exception:  # noqa: BLE001 - no frame is left to tell it in
            self.faults[name] = 1

    def switch_off(self) -> None:
        """Stops all reading and writing at once, for a forked child that is not the run."""
        self._off, self.thread = True, -1

    def replay_call(self, calls: Iterable[Callable[..., None]], *args: Any) -> None:
        """Who is awake by now hears a call that somebody at rest was the only one to hear."""
        outermost, self._inside = not self._inside, True  # the time is counted already
        try:
            for call in calls:
                call(*args)
        finally:
            self._inside = not outermost

    def _fault(self, name: str, error: Exception) -> None:
        """Switches off and tells once. Called near the recursion limit, too, and with memory short."""
        known, self.faults[name] = name in self.faults, self.faults.get(name, 0) + 1
        if known:
            return
        try:
            said = str(error)
        except Exception:  # noqa: BLE001 - an error of the program's own class, which fails to say what it is
            said = ""
        told = text(f"{type(error).__name__}: {said}", 500)
        self.failed(name, told)
        with suppress(Exception):  # somebody's log handler may raise
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(where.filename)}:{where.lineno}"
            log.warning(
                "ammeter: its %s probe failed and is switched off (%s, %s); training goes on", name, told, place
            )


def _capturing() -> bool:
    """Nothing of ours may run while a CUDA graph is being captured: it would become part of the graph."""
    started: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return started and torch.cuda.is_current_stream_capturing()


_function_modes: Callable[[], int] = torch._C._len_torch_function_stack

_CUDA = torch.version.cuda is not None or torch.version.hip is not None
