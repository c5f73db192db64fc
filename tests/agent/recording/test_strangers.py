"""Objects of a program that readings meet by chance, and cannot read, switch off no part of Ammeter."""

from __future__ import annotations

import gc
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter.recording.unobserved import backward as unobserved_backward
from ammeter.tensors.live_objects import live_objects
from tests.agent.recording.unobserved.test_same_rows import BACKWARD
from tests.agent.training import events, stream


class Net(torch.nn.Module):
    """A network with a buffer, or one whose construction ends before that of its base class."""

    def __init__(self, kept: list[object] | None = None, buffer: torch.Tensor | None = None) -> None:
        if kept is not None:
            kept.append(self)
            raise ValueError("no layers")
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("held", buffer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x)
        return result


class Proxy:
    """An object that stands for another one, which does not exist yet."""

    asked = 0

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        type(self).asked += 1
        raise RuntimeError("there is no such object yet")


class Mul(torch.autograd.Function):
    """A product whose node has the name of torch's own, up to a number."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * ctx.factor, None


def faults(folder: Path, net: Net, backward: Callable[[torch.Tensor], object] = torch.Tensor.backward) -> list[Any]:
    """Trains with a scaler and, in every second step, without it; returns the faults of Ammeter's parts."""
    optimizer, scaler = torch.optim.SGD(net.parameters(), lr=0.01), torch.amp.GradScaler("cpu")
    run = ammeter.watch(net, optimizer, scaler, dir=folder)
    for _ in range(4):
        scaler.scale(net(torch.randn(2, 4)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        backward(net(torch.randn(2, 4)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    run.close()
    return events(stream(run.id, folder)[1], "probe.failed")


UNREADABLE: dict[str, Callable[[], torch.Tensor]] = {
    "float8": lambda: torch.ones(4).to(torch.float8_e4m3fn),
    "lazy": torch.nn.parameter.UninitializedBuffer,
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "meta": lambda: torch.empty(3, device="meta"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("make", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_buffer_that_has_no_norm(make: Callable[[], torch.Tensor], tmp_path: Path) -> None:
    assert [] == faults(tmp_path, Net(buffer=make()))


class Guarded(defaultdict[Any, Any]):
    """The state of an optimizer that nobody may look through."""

    def items(self) -> Any:
        raise RuntimeError("not for you")


def test_an_optimizer_whose_state_cannot_be_looked_through(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.state = Guarded()
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    assert run.path is not None
    model(torch.randn(2, 4)).square().mean().backward()
    optimizer.step()
    run.close()
    assert [0] == list(ammeter.load(run.path).steps()["step"])


def test_a_function_of_the_program_with_the_name_of_torchs_product(tmp_path: Path) -> None:
    def backward(loss: torch.Tensor) -> None:
        Mul.apply(loss, 2.0).backward()  # type: ignore[no-untyped-call]

    assert [] == faults(tmp_path, Net(), backward)


def test_a_module_whose_construction_failed(tmp_path: Path) -> None:
    kept: list[object] = []
    with pytest.raises(ValueError, match="no layers"):
        Net(kept)
    assert [] == faults(tmp_path, Net())
    assert kept


def test_a_proxy_in_a_container_is_not_asked_for_its_class(tmp_path: Path) -> None:
    kept = {name: Proxy() for name, _ in Net().named_parameters()}
    Proxy.asked = 0
    assert [] == faults(tmp_path, Net())
    assert (0, 2) == (Proxy.asked, len(kept))


def test_a_version_of_torch_without_callbacks_of_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unobserved_backward, "_queue_callback", None)
    assert [] == faults(tmp_path, Net(), BACKWARD)


def test_no_finalizer_runs_while_tuples_under_construction_have_another_reference() -> None:
    """A collection may begin at any allocation, so the test makes it due at each of the first allocations."""
    interrupted: list[bool] = []

    def collecting(_: str, __: dict[str, int]) -> None:
        interrupted.append("every_object" in sys._getframe(1).f_locals)

    thresholds = gc.get_threshold()
    gc.callbacks.append(collecting)
    try:
        for threshold in range(1, 80):
            gc.collect()
            gc.set_threshold(threshold)
            live_objects(list)
            gc.set_threshold(*thresholds)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(collecting)
    assert gc.isenabled()
    assert interrupted
    assert not any(interrupted)
