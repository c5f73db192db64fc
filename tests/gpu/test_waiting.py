"""Nothing of ours waits for the device while a program trains: torch raises where it would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.recording.session import Session
from tests.agent.training import events, stream
from tests.gpu.programs import Program, train


class Strict:
    """Makes torch raise in every callback of ours that would wait, until the training has ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waited: list[str] = []
        self.called = 0
        self.training = True
        guard, light_guard, strict = Session.guard, Session.light_guard, self

        def strict_guard(session: Session, name: str, *, any_thread: bool = True) -> Any:
            safe = guard(session, name, any_thread=any_thread)
            return lambda call: safe(strict.checked(name, call))

        def strict_light_guard(session: Session, name: str, call: Any, *, any_thread: bool = False) -> Any:
            return light_guard(session, name, strict.checked(name, call), any_thread=any_thread)

        monkeypatch.setattr(Session, "guard", strict_guard)
        monkeypatch.setattr(Session, "light_guard", strict_light_guard)

    def checked(self, name: str, call: Callable[..., None]) -> Callable[..., None]:
        def checked(*args: Any) -> None:
            if not self.training:
                return call(*args)
            self.called += 1
            before = torch.cuda.get_sync_debug_mode()
            torch.cuda.set_sync_debug_mode("error")
            try:
                return call(*args)
            except RuntimeError as error:
                self.waited.append(f"{name}: {error}")
                raise
            finally:
                torch.cuda.set_sync_debug_mode(before)

        return checked

    def relax(self) -> None:
        self.training = False


@pytest.fixture
def strict(cuda: str, monkeypatch: pytest.MonkeyPatch) -> Strict:
    return Strict(monkeypatch)


def test_a_callback_that_waits_would_be_noticed(strict: Strict, tmp_path: Path) -> None:
    def wait() -> None:
        assert torch.ones(1, device="cuda").item() == 1

    def see(step: int, model: torch.nn.Module) -> None:
        if step == 3:
            strict.checked("one that waits", wait)()

    with pytest.raises(RuntimeError, match="synchroniz"):
        train(Program(), "cuda", see=see)
    assert ["one that waits"] == [warning.partition(":")[0] for warning in strict.waited]


@pytest.mark.parametrize("preset", ["light", "default", "full"])
@pytest.mark.parametrize(
    "program",
    [Program(clip=True, bad=(5, 6)), Program(adamw={"fused": True}, bad=(5,)), Program("bf16", clip=True)],
    ids=["fp16", "fp16, fused", "bf16"],
)
def test_no_callback_of_ours_waits_for_the_device(
    strict: Strict, program: Program, preset: str, tmp_path: Path
) -> None:
    left = train(program, "cuda", tmp_path, preset=preset, ends=strict.relax)
    assert [] == strict.waited
    assert strict.called > 5 * program.steps
    assert [] == [event.data for event in events(stream(left.run, tmp_path)[1], "probe.failed")]


@pytest.mark.parametrize("preset", ["light", "default", "full"])
def test_a_whole_watched_step_does_not_wait(cuda: str, preset: str, tmp_path: Path) -> None:
    """In bfloat16, where a bare step has nothing to wait for: torch raises wherever in the step something waits."""

    def see(step: int, model: torch.nn.Module) -> None:
        if step == 1:  # the first steps allocate; the copies of the inputs are done
            torch.cuda.set_sync_debug_mode("error")

    def ends() -> None:
        torch.cuda.set_sync_debug_mode("default")

    try:
        train(Program("bf16", clip=True), "cuda", None, see=see, ends=ends)
        left = train(Program("bf16", clip=True), "cuda", tmp_path, preset=preset, see=see, ends=ends)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [] == [event.data for event in events(stream(left.run, tmp_path)[1], "probe.failed")]


WAITS = (
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "cudaMemcpy",
    "cudaFree",
    "cudaMalloc",
)
"""Calls of the CUDA runtime that wait for the device."""


def waits(program: Program, folder: Path | None) -> dict[str, int]:
    """How often a training calls what waits for the device, as CUPTI counts it, before its run is closed."""
    profiler = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    )

    def see(step: int, model: torch.nn.Module) -> None:
        if step == 10:
            profiler.start()

    train(program, "cuda", folder, see=see, ends=profiler.stop)
    counted = {event.key: event.count for event in profiler.key_averages()}
    if not any(key.startswith("cudaLaunch") for key in counted):
        pytest.skip("CUPTI records no calls of the CUDA runtime here")
    return {name: counted.get(name, 0) for name in WAITS}


@pytest.mark.parametrize("program", [Program(clip=True), Program("bf16", clip=True)], ids=["fp16", "bf16"])
def test_cupti_counts_no_more_waiting_than_without_us(cuda: str, program: Program, tmp_path: Path) -> None:
    waits(program, None)  # the first one allocates
    bare = waits(program, None)
    assert bare == waits(program, tmp_path)


def test_the_device_holds_little_more_than_without_us(cuda: str, tmp_path: Path) -> None:
    def peak(folder: Path | None) -> int:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        train(Program(clip=True), "cuda", folder)
        return torch.cuda.max_memory_allocated() - before

    assert peak(tmp_path) <= peak(None) + MAX_ADDED_BYTES


MAX_ADDED_BYTES = 32 * 2**20
"""What ammeter.tensors.cuda.Device holds at most."""
