"""Errors about dtypes on their way out: told with operator, dtypes and module, and never changed or held up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.probes.call_order.raised import dtypes_in, problem_in
from ammeter.wire.frames import Event
from tests.agent.programs import start
from tests.agent.training import line_of, watching


class Cast(torch.nn.Module):
    """Leaves the autocast region on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.fc(x.half())  # type: ignore[no-any-return]


class Net(torch.nn.Module):
    def __init__(self, kind: Any = Cast) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(4, 4), kind()) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def fails(model: Any, error: type[Exception] = RuntimeError) -> str:
    """What the forward pass says when it fails."""
    with pytest.raises(error) as caught, torch.autocast("cpu", torch.float16):
        model(torch.randn(2, 4))
    return str(caught.value)


def test_an_error_in_the_forward_pass_is_told_with_its_module_and_passes_unchanged(tmp_path: Path) -> None:
    model = Net()
    bare = fails(model)
    with watching(tmp_path, model, torch.optim.SGD(model.parameters())) as seen:
        assert bare == fails(model)
    (event,) = seen.events("usage.unsupported_op")
    assert ("blocks.0.1.fc", "linear", False) == tuple(event.data[key] for key in ("module", "op", "backward"))
    assert ["float16", "float32"] == event.data["dtypes"]
    assert bare.startswith(event.data["message"])
    assert event.data["caller"].endswith(line_of(Cast.forward, "self.fc(x.half())"))


class Again(torch.autograd.Function):
    """Runs a module again in its backward pass, where autocast is off."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, model: torch.nn.Module) -> torch.Tensor:
        ctx.model, ctx.x = model, x.detach()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            output: torch.Tensor = model(x)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        with torch.enable_grad():
            torch.autograd.backward(ctx.model(ctx.x.requires_grad_()), gradients)
        return ctx.x.grad, None


class Narrow(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.bfloat16()


def test_an_error_in_a_forward_pass_that_backward_runs_again_is_one_of_backward(tmp_path: Path) -> None:
    model = torch.nn.Sequential(Narrow(), torch.nn.Linear(4, 4))
    with watching(tmp_path, model, torch.optim.SGD(model.parameters())) as seen:
        output: Any = Again.apply(torch.randn(2, 4, requires_grad=True), model)  # type: ignore[no-untyped-call]
        with pytest.raises(RuntimeError):
            torch.autograd.backward(output.float().sum())
    (event,) = seen.events("usage.unsupported_op")
    assert ("1", "linear", True) == tuple(event.data[key] for key in ("module", "op", "backward"))


class Unknown(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return torch.linalg.inv(x @ x.t())  # type: ignore[no-any-return]


class Unmatched(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.index_put((torch.tensor([0]),), torch.ones(1, 4, dtype=torch.float64))


@pytest.mark.parametrize(("kind", "op"), [(Unknown, "linalg.inv"), (Unmatched, "index_put")])
def test_the_operator_is_named_as_the_program_calls_it(kind: Any, op: str, tmp_path: Path) -> None:
    model = Net(kind)
    with watching(tmp_path, model, torch.optim.SGD(model.parameters())) as seen:
        fails(model)
    (event,) = seen.events("usage.unsupported_op")
    assert ("blocks.0.1", op) == (event.data["module"], event.data["op"])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x @ torch.ones(7, 2),
        lambda x: (_ for _ in ()).throw(ValueError("half of the batch is missing")),
        lambda x: (_ for _ in ()).throw(RuntimeError("float precision is a hard word")),
        lambda x: x[100],
    ],
)
def test_other_errors_are_not_told(wrong: Any, tmp_path: Path) -> None:
    class Other(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return wrong(x)

    model = Net(Other)
    with watching(tmp_path, model, torch.optim.SGD(model.parameters())) as seen:
        fails(model, Exception)
    assert {} == seen.usage()


half, full = torch.ones(4, 4).half(), torch.ones(4, 4)
CALLS: list[tuple[Any, list[str]]] = [
    (lambda: half @ full, ["float16", "float32"]),
    (lambda: full.bfloat16() @ full, ["bfloat16", "float32"]),
    (lambda: torch.bmm(half[None], full[None]), ["float16", "float32"]),
    (lambda: torch.nn.functional.conv1d(half[None], torch.ones(2, 4, 1)), ["float16", "float32"]),
    (lambda: torch.nn.functional.linear(full, half, torch.ones(4)), ["float16", "float32"]),
    (lambda: torch.nn.functional.scaled_dot_product_attention(half, full, half), ["float16", "float32"]),
    (lambda: torch.nn.LSTM(4, 4)(half), ["float16", "float32"]),
    (lambda: torch.linalg.svd(half), ["float16"]),
    (lambda: torch.linalg.inv(half), ["float16"]),
    (lambda: torch.cdist(half, half), ["float16"]),
    (lambda: torch.fft.fft(half[:3]), ["float16"]),
    (lambda: torch.lerp(half, full, 0.5), ["float16", "float32"]),
    (lambda: torch.dot(half[0], full[0]), ["float16", "float32"]),
    (lambda: torch.zeros(3).index_add_(0, torch.tensor([0]), half[0, :1]), ["float16", "float32"]),
    (lambda: torch.nn.BatchNorm1d(4).bfloat16()(half), ["float32"]),
    (lambda: full.double() @ full, []),
    (lambda: full @ torch.ones(3, 3), []),
    (lambda: torch.linalg.inv(torch.ones(3, 3).long()), []),
    (lambda: half.view(3, 3), []),
    (lambda: half.numpy().reshape(5), []),
]
"""What torch really says, and the dtypes in it."""


@pytest.mark.parametrize(("call", "dtypes"), CALLS)
def test_errors_about_half_precision_are_told_from_others(call: Any, dtypes: list[str]) -> None:
    with pytest.raises((RuntimeError, ValueError, NotImplementedError)) as caught:
        call()
    assert dtypes == dtypes_in(str(caught.value)), caught.value


def test_an_operator_that_autocast_refuses_on_cuda_is_told() -> None:
    said = (
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\nMany models use a ..."
    )
    assert ["float16"] == dtypes_in(said)


everywhere = torch.ones(4, 4).bool()


@pytest.mark.parametrize(
    ("call", "dtype"),
    [
        (lambda: half.masked_fill(everywhere, -1e9), "float16"),
        (lambda: half.masked_fill(everywhere, 1e30), "float16"),
        (lambda: torch.full((2,), 1e9, dtype=torch.float16), "float16"),
        (lambda: full.bfloat16().masked_fill(everywhere, -1e39), "bfloat16"),
    ],
)
def test_a_number_beyond_a_dtype_is_told(call: Any, dtype: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        call()
    assert ("overflow", [dtype]) == problem_in(str(caught.value))


def test_older_releases_of_torch_name_the_number_and_another_namespace() -> None:
    message = "value cannot be converted to type at::Half without overflow: -1e+09"
    assert ("overflow", ["float16"]) == problem_in(message)


BACKWARD = """
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient.half() @ weight.t(), None


optimizer.zero_grad()
Scale.apply(model(torch.ones(3, 4)), torch.ones(2, 2)).sum().backward()
"""


def test_an_error_in_backward_that_ends_the_program_is_told(tmp_path: Path) -> None:
    ended = start(BACKWARD, tmp_path).end()
    assert 1 == ended.code
    assert "to have the same dtype" in ended.err
    (event,) = [event for event in ended.stream() if isinstance(event, Event) and event.name == "usage.unsupported_op"]
    assert (True, ["float16", "float32"]) == (event.data["backward"], event.data["dtypes"])
    assert event.data["caller"].startswith("script.py:")


def test_an_error_is_told_where_the_program_closes_the_run_by_finally(tmp_path: Path) -> None:
    body = "try:\n    (model(torch.ones(3, 4)).half() @ torch.ones(2, 2)).sum()\nfinally:\n    run.close()\n"
    ended = start(body.replace("\\\n", "\n"), tmp_path).end()
    (event,) = [event for event in ended.stream() if isinstance(event, Event) and event.name == "usage.unsupported_op"]
    assert (False, "") == (event.data["backward"], event.data["module"])


PAST_THE_SCALER = """
scaler = torch.amp.GradScaler("cpu")
weights = list(model.parameters())
for step in range(8):
    loss = scaler.scale(model(torch.ones(3, 4)).square().mean())
    for weight, gradient in zip(weights, torch.autograd.grad(loss, weights)):
        weight.grad = gradient
        weight.grad.mul_(0.5)  # as by a clip of the program's own
    optimizer.step()
    scaler.update()
"""


def test_a_step_past_the_scaler_on_assigned_gradients_is_told_although_update_ends_the_program(tmp_path: Path) -> None:
    ended = start(PAST_THE_SCALER, tmp_path).end()
    assert "No inf checks were recorded prior to update" in ended.err
    names = ("usage.gradients_not_unscaled",)
    (event,) = [event for event in ended.stream() if isinstance(event, Event) and event.name in names]
    assert (True, "SGD") == (event.data["raises"], event.data["optimizer"])
    assert event.data["caller"].startswith("script.py:")


SECOND_UNSCALE = """
scaler = torch.amp.GradScaler("cpu")
for step in range(8):
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(3, 4)).square().mean()).backward()
    scaler.unscale_(optimizer)
    if step != 5:
        scaler.step(optimizer)
        scaler.update()
"""


def test_a_second_unscale_that_ends_the_program_is_told(tmp_path: Path) -> None:
    ended = start(SECOND_UNSCALE, tmp_path).end()
    assert "unscale_() has already been called" in ended.err
    (event,) = [event for event in ended.stream() if isinstance(event, Event) and event.name == "usage.mixed_scale"]
    assert ("second unscale_", "SGD", 65536.0) == tuple(event.data[key] for key in ("after", "optimizer", "scale"))
    assert event.data["caller"].startswith("script.py:")


def test_a_micro_batch_after_unscale_is_told_although_the_next_unscale_ends_the_program(tmp_path: Path) -> None:
    body = SECOND_UNSCALE.replace("optimizer.zero_grad()", "step == 6 or optimizer.zero_grad()")
    ended = start(body, tmp_path).end()
    (event,) = [event for event in ended.stream() if isinstance(event, Event) and event.name == "usage.mixed_scale"]
    assert "unscale_" == event.data["after"]
    assert event.data["left"] > 0
