"""Weights in half precision, and an eps that is zero there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.training import Model, line_of, watching


def train(model: Any, optimizer: Any, steps: int = 3, dtype: torch.dtype = torch.float32) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 12, dtype=dtype)).float().square().mean().backward()
        optimizer.step()


class Masters(torch.optim.SGD):
    """Keeps a float32 copy of each weight, in its state or in a list, and steps that one."""

    def __init__(self, parameters: Any, place: str) -> None:
        super().__init__(parameters, lr=0.1)
        self.place = place
        self.copies = [[parameter.detach().float() for parameter in group["params"]] for group in self.param_groups]
        if place == "state":
            for group, copies in zip(self.param_groups, self.copies, strict=True):
                for parameter, own in zip(group["params"], copies, strict=True):
                    self.state[parameter]["exact"] = own
            del self.copies

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for number, group in enumerate(self.param_groups):
            for at, parameter in enumerate(group["params"]):
                own = self.state[parameter]["exact"] if self.place == "state" else self.copies[number][at]
                own -= 0.1 * parameter.grad.float()
                parameter.data.copy_(own)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.RMSprop])
def test_half_weights_without_masters_are_told(kind: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model().to(dtype)
    optimizer = kind(model.parameters(), lr=1e-3, **({"eps": 1e-3} if kind is torch.optim.RMSprop else {}))
    with watching(tmp_path, model, optimizer) as seen:
        train(model, optimizer, dtype=dtype)
    usage = seen.usage()
    word = str(dtype).removeprefix("torch.")
    assert {"half_weights"} | ({"fp16_without_scaler"} if dtype is torch.float16 else set()) == set(usage)
    data = usage["half_weights"]
    assert {"optimizer": kind.__name__, "dtypes": [word], "count": 8, "of": 8, "refused": False} == {
        key: data[key] for key in ("optimizer", "dtypes", "count", "of", "refused")
    }
    assert ["first.weight", "first.bias", "norm.weight", "norm.bias", "middle.weight"] == data["tensors"]
    assert ([word] if kind is torch.optim.RMSprop else []) == data["state"]
    assert data["caller"].endswith(line_of(train, "optimizer.step"))


def test_weights_that_become_half_later_are_told_at_once(tmp_path: Path) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watching(tmp_path, model, optimizer) as seen:
        train(model, optimizer, steps=19)
        model.to(torch.bfloat16)
        train(model, optimizer, steps=2, dtype=torch.bfloat16)
    assert ["bfloat16"] == seen.usage()["half_weights"]["dtypes"]
    assert 19 == seen.findings()["half-master-weights"].first_step


@pytest.mark.parametrize("place", ["state", "list"])
def test_half_weights_with_masters_are_not_told(place: str, tmp_path: Path) -> None:
    model = Model().bfloat16()
    optimizer = Masters(model.parameters(), place)
    with watching(tmp_path, model, optimizer) as seen:
        train(model, optimizer, dtype=torch.bfloat16)
    assert {} == seen.usage()


def test_moments_in_float32_are_no_masters(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros(parameter.shape)
    with watching(tmp_path, model, optimizer) as seen:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 12, dtype=torch.bfloat16)).float().square().mean().backward()
            for parameter in model.parameters():
                parameter.grad = None if parameter.grad is None else parameter.grad.clone()
            for parameter in model.parameters():
                optimizer.state[parameter]["momentum_buffer"] = torch.randn(parameter.shape)
            optimizer.param_groups[0]["momentum"] = 0.0
            optimizer.step()
    data = seen.usage()["half_weights"]
    assert ["float32"] == data["state"]
    assert data["held"] < 0.1


def test_frozen_half_weights_are_not_told(tmp_path: Path) -> None:
    base, adapter = torch.nn.Linear(12, 12).half(), torch.nn.Linear(12, 3)
    base.requires_grad_(False)
    model = torch.nn.Sequential(base, adapter)
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
    with watching(tmp_path, model, optimizer) as seen:
        for _ in range(3):
            optimizer.zero_grad()
            adapter(base(torch.randn(8, 12).half()).float()).square().mean().backward()
            optimizer.step()
    assert {} == seen.usage()


def test_float16_weights_are_told_before_the_scaler_refuses_them(tmp_path: Path) -> None:
    model, scales = Model().half(), torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watching(tmp_path, model, optimizer, scales) as seen:
        loss: Any = scales.scale(model(torch.randn(8, 12).half()).float().square().mean())
        loss.backward()
        with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
            scales.unscale_(optimizer)
    usage = seen.usage()
    assert ["half_weights"] == list(usage)
    data = usage["half_weights"]
    assert (True, 8, 8.0, []) == tuple(data[key] for key in ("refused", "count", "scale", "state"))
    assert data["caller"].endswith(
        line_of(test_float16_weights_are_told_before_the_scaler_refuses_them, "scales.unscale_")
    )


@pytest.mark.parametrize(("eps", "tells"), [(1e-8, True), (1e-4, False)])
@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
def test_an_eps_that_is_zero_in_the_state_of_the_optimizer_is_told(
    eps: float, tells: bool, options: dict[str, Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(12, 3).half()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=eps, **options)
    with watching(tmp_path, model, optimizer) as seen:
        for _ in range(3):
            optimizer.zero_grad()
            (model(torch.zeros(8, 12).half()).float().square().mean() * 0).backward()
            optimizer.step()
    poisoned = bool(model.weight.isnan().any())
    assert poisoned == ("eps_below_dtype" in seen.usage())
    if tells and "fused" not in options:
        data = seen.usage()["eps_below_dtype"]
        assert ("Adam", 1e-8, "float16") == (data["where"], data["eps"], data["dtype"])


def test_the_eps_of_float32_and_bfloat16_weights_is_not_told(tmp_path: Path) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        model = torch.nn.Linear(12, 3).to(dtype)
        optimizer = torch.optim.Adam(model.parameters(), eps=1e-12)
        with watching(tmp_path, model, optimizer) as seen:
            train(model, optimizer, dtype=dtype)
        assert "eps_below_dtype" not in seen.usage()


@pytest.mark.parametrize(
    "norm",
    [
        lambda eps: torch.nn.BatchNorm1d(12, eps=eps),
        lambda eps: torch.nn.LayerNorm(12, eps=eps),
        lambda eps: torch.nn.GroupNorm(3, 12, eps=eps),
        lambda eps: torch.nn.RMSNorm(12, eps=eps),
    ],
    ids=["BatchNorm", "LayerNorm", "GroupNorm", "RMSNorm"],
)
@pytest.mark.parametrize("eps", [1e-5, 1e-9])
def test_the_eps_of_a_norm_is_told_where_torch_adds_it_in_half_precision(norm: Any, eps: float, tmp_path: Path) -> None:
    layer = norm(eps).half()
    really = bool(layer(torch.zeros(8, 12).half()).isnan().any())
    model = torch.nn.Sequential(torch.nn.Linear(12, 12), torch.nn.ModuleDict({"norm": layer}))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=1e-3)
    with watching(tmp_path, model, optimizer) as seen:
        for _ in range(2):
            optimizer.zero_grad()
            model[0](torch.randn(8, 12)).square().mean().backward()
            optimizer.step()
    assert ({"1.norm"} if really else set()) == {data["where"] for data in seen.usage().values()}


@pytest.mark.parametrize(("eps", "tells"), [(0.0, True), (1e-50, True), (1e-12, False)])
@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}])
def test_an_eps_that_is_zero_in_float32_is_told(
    eps: float, tells: bool, options: dict[str, Any], tmp_path: Path
) -> None:
    model = torch.nn.Linear(12, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=eps, **options)
    with watching(tmp_path, model, optimizer) as seen:
        train(model, optimizer)
    told = seen.usage().get("eps_below_dtype")
    assert tells == (told is not None)
    if told is not None:
        assert ("AdamW", eps, "float32") == (told["where"], told["eps"], told["dtype"])
