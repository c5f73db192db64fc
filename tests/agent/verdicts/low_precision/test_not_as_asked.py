"""not-as-asked fires where half precision was asked for and did not run, and is silent where nobody asked."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from ammeter.recording.schedule.budget import Governor
from tests.agent.stream_builder import Stream, mistaken
from tests.agent.stream_judgement import findings
from tests.agent.streams import broken
from tests.agent.training import Model, line_of, watching

NAME = "not-as-asked"


@broken
def not_as_asked() -> Stream:
    data = {"reason": "refused", "asked": "float16", "ran": "float32", "device": "cuda", "trained_on": ["cpu"]}
    return mistaken("not_as_asked", **data, scale=65536.0)


def cpu(dtype: torch.dtype = torch.float16, **options: Any) -> torch.autocast:
    return torch.autocast("cpu", dtype=dtype, **options)


@contextmanager
def cuda(**options: Any) -> Iterator[None]:
    """autocast for CUDA, on a machine that may have none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        context = torch.autocast("cuda", dtype=torch.float16, **options)
    with context:
        yield


Context = Callable[[], AbstractContextManager[Any]]


def trained(
    folder: Path,
    context: Context,
    *,
    scaled: bool,
    steps: int = 8,
    outside: bool = False,
    kind: type[torch.nn.Module] = Model,
    **options: Any,
) -> Any:
    """A program whose forward pass and loss are inside a context, or right behind one."""
    torch.manual_seed(0)
    model = kind()
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu", 2.0**8, enabled=scaled)
    with watching(folder, model, optimizer, scaler if scaled else None, **options) as seen:
        for _ in range(steps):
            x, y = torch.randn(8, 12), torch.randint(3, (8,))
            if outside:
                with context():
                    x = x @ torch.eye(12)
                loss = cross_entropy(model(x.float()), y)
            else:
                with context():
                    loss = cross_entropy(model(x).float(), y)
            optimizer.zero_grad()
            torch.autograd.backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
    return seen


def reason_of(seen: Any) -> str | None:
    found = seen.findings()
    return str(found[NAME].evidence["reason"]) if NAME in found else None


def created_and_dropped() -> AbstractContextManager[Any]:
    torch.autocast("cpu", dtype=torch.float16)
    return nullcontext()


def inner() -> AbstractContextManager[Any]:
    @contextmanager
    def both() -> Iterator[None]:
        with cpu(), cpu(torch.bfloat16):
            yield

    return both()


@pytest.mark.skipif(torch.cuda.is_available(), reason="with CUDA, autocast for it is not refused")
@pytest.mark.parametrize("scaled", [True, False])
def test_autocast_for_a_device_that_there_is_not_is_found(scaled: bool, tmp_path: Path) -> None:
    seen = trained(tmp_path, cuda, scaled=scaled)
    finding = seen.findings()[NAME]
    assert ("refused", "float16", "float32") == tuple(finding.evidence[name] for name in ("reason", "asked", "ran"))
    assert str(finding.caller).endswith(line_of(inspect.unwrap(cuda), 'torch.autocast("cuda"'))
    assert "with the device of the model ('cpu')" in finding.fix
    assert {NAME} == set(seen.findings())


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value * 2

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> torch.Tensor:
        return upstream * 2


class WithFunctions(torch.nn.Module):
    """A model with Functions of the program between layers, whose products autocast concerns."""

    def __init__(self, functions: int) -> None:
        super().__init__()
        self.body, self.head, self.functions = Model(), torch.nn.Linear(3, 3), functions

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        for _ in range(self.functions):
            x = Doubled.apply(x)  # type: ignore[no-untyped-call]
        logits: torch.Tensor = self.head(x)
        return logits


@pytest.mark.skipif(torch.cuda.is_available(), reason="with CUDA, autocast for it is not refused")
@pytest.mark.filterwarnings("ignore:In CPU autocast, but the target dtype is not supported")
@pytest.mark.parametrize(
    ("context", "functions", "reason"),
    [
        (cuda, 9, "refused"),
        (cpu, 1, None),
        (lambda: cpu(enabled=False), 1, "disabled"),
        (lambda: cpu(torch.float32), 1, "float32"),
        (lambda: cpu(enabled=False), 9, None),
        (nullcontext, 1, None),
    ],
)
def test_a_model_with_functions_of_its_own_is_judged_by_autocast_that_is_off(
    context: Context, functions: int, reason: str | None, tmp_path: Path
) -> None:
    """And only if more products than Functions show that it is off."""
    torch.manual_seed(0)
    model = WithFunctions(functions)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu", 2.0**8)
    with watching(tmp_path, model, optimizer, scaler) as seen:
        for _ in range(12):
            optimizer.zero_grad()
            with context():
                loss = cross_entropy(model(torch.randn(8, 12)).float(), torch.randint(3, (8,)))
            torch.autograd.backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
    assert reason == reason_of(seen)


@pytest.mark.parametrize(
    ("context", "outside", "reason"),
    [
        (lambda: cpu(enabled=False), False, "disabled"),
        (created_and_dropped, False, "not-entered"),
        (cpu, True, "outside"),
        (inner, False, "other-dtype"),
    ],
)
def test_a_scaler_whose_loss_is_not_in_float16_is_found_with_the_reason(
    context: Context, outside: bool, reason: str, tmp_path: Path
) -> None:
    seen = trained(tmp_path, context, scaled=True, outside=outside)
    assert reason == reason_of(seen)
    assert {NAME} == set(seen.findings())


def test_a_scaler_without_any_autocast_is_found_after_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Governor, "follows", lambda *_: True)  # how often it follows depends on the load
    seen = trained(tmp_path, nullcontext, scaled=True, steps=210)
    finding = seen.findings()[NAME]
    assert "no-autocast" == finding.evidence["reason"]
    assert 200 == finding.opened_step
    assert "An enabled GradScaler scales the loss at" in finding.cause


def test_autocast_for_another_device_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with CUDA a model on the CPU is not concerned by its autocast."""
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    assert "wrong-device" == reason_of(trained(tmp_path, cuda, scaled=False))


def test_contexts_that_are_never_entered_are_found_without_a_scaler(tmp_path: Path) -> None:
    assert "not-entered" == reason_of(trained(tmp_path, created_and_dropped, scaled=False, steps=16))


def test_a_decorated_function_beside_the_forward_pass_is_found(tmp_path: Path) -> None:
    @torch.autocast("cpu", dtype=torch.float16)  # type: ignore[untyped-decorator]
    def load() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(8, 12), torch.randint(3, (8,))

    model = Model()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu", 2.0**8)
    with watching(tmp_path, model, optimizer, scaler) as seen:
        for _ in range(8):
            x, y = load()
            optimizer.zero_grad()
            torch.autograd.backward(scaler.scale(cross_entropy(model(x), y)))
            scaler.step(optimizer)
            scaler.update()
    assert "outside" == reason_of(seen)


@pytest.mark.parametrize(
    ("context", "scaled"),
    [
        (nullcontext, False),
        (cpu, True),
        (lambda: cpu(torch.bfloat16), False),
        (lambda: cpu(enabled=False), False),
        (lambda: cuda(enabled=False), False),
        (lambda: cpu(torch.bfloat16, enabled=False), False),
    ],
)
def test_what_was_asked_for_and_runs_is_silent(context: Context, scaled: bool, tmp_path: Path) -> None:
    assert NAME not in trained(tmp_path, context, scaled=scaled, steps=20).findings()


class Islands(torch.nn.Module):
    """A head and a norm in float32 on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Model(), torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = self.body(x)
        with torch.autocast("cpu", enabled=False):
            logits: torch.Tensor = self.head(hidden.float().softmax(-1))
        return logits


class Hidden(torch.nn.Module):
    """A model whose graph is inside a Function of the program."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Model()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def run(x: torch.Tensor) -> torch.Tensor:
            with cpu():
                return self.body(x).float()  # type: ignore[no-any-return]

        output: torch.Tensor = checkpoint(run, x.requires_grad_(), use_reentrant=True)
        return output


@pytest.mark.parametrize("kind", [Islands, Hidden])
def test_islands_and_graphs_that_hide_their_dtypes_are_silent(kind: Any, tmp_path: Path) -> None:
    model = kind()
    scaler = torch.amp.GradScaler("cpu", 2.0**8, enabled=kind is Hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(tmp_path, model, optimizer, scaler) as seen:
        for _ in range(12):
            optimizer.zero_grad()
            loss = cross_entropy(model(torch.randn(8, 12)), torch.randint(3, (8,)))
            torch.autograd.backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
    assert NAME not in seen.findings()


def test_autocast_of_a_teacher_and_of_the_evaluation_asks_nothing_of_the_training(tmp_path: Path) -> None:
    model, teacher = Model(), Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(tmp_path, model, optimizer) as seen:
        for step in range(20):
            x = torch.randn(8, 12)
            with torch.no_grad(), cpu():
                wanted = teacher(x).float()
            if step % 5 == 0:
                model.eval()
                with torch.no_grad(), cuda():
                    model(x)
                model.train()
            optimizer.zero_grad()
            torch.autograd.backward((model(x) - wanted).square().mean())
            optimizer.step()
    assert NAME not in seen.findings()


def test_features_of_a_frozen_network_in_half_precision_are_silent(tmp_path: Path) -> None:
    """The head trains in float32 on purpose."""
    body, head = Model().requires_grad_(False), torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
    with watching(tmp_path, head, optimizer) as seen:
        for _ in range(20):
            with cpu(torch.bfloat16):
                features = body(torch.randn(8, 12))
            optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(head(features.float()), torch.randint(3, (8,))))
            optimizer.step()
    assert NAME not in seen.findings()


def test_the_words_have_both_dtypes_the_device_and_the_line() -> None:
    finding = findings(not_as_asked())[NAME]
    assert "float16 was asked for, but the loss is computed in float32" == finding.title
    assert finding.cause.startswith("PyTorch disabled torch.autocast('cuda') at loop/train.py:120")
    assert "the model is on cpu" in finding.cause
    assert "An enabled GradScaler (scale 65536) has no use there." in finding.cause
    assert "Write torch.autocast(device.type, dtype=torch.float16) at loop/train.py:120" in finding.fix
