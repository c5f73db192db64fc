"""Mixed precision that is switched off stays off, however a program asks for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import forked

BEGIN = """
import torch
from ammeter.preparation import float32

float32.switch_off()
torch.set_num_threads(1)
weight = torch.randn(4, 4, requires_grad=True)
"""


def prints(body: str) -> list[str]:
    """What the program prints that is switched off first."""
    process = forked.Popen(
        [sys.executable, "-c", BEGIN + body], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    out, err = process.communicate(timeout=120)
    assert 0 == process.returncode, err
    return str(out).splitlines()


@pytest.mark.parametrize(
    "call",
    [
        "torch.autocast('cpu', torch.bfloat16)",
        "torch.autocast('cpu', torch.bfloat16, True)",
        "torch.autocast(device_type='cpu', dtype=torch.float16, enabled=True)",
        "torch.amp.autocast('cpu', torch.bfloat16)",
        "torch.cpu.amp.autocast(True, torch.bfloat16)",
        "torch.cuda.amp.autocast(dtype=torch.float16)",
    ],
)
def test_a_matrix_product_below_autocast_is_in_float32(call: str) -> None:
    assert ["torch.float32"] == prints(f"with {call}:\n    print((weight @ weight).dtype)")


def test_a_decorated_function_computes_in_float32() -> None:
    body = """
@torch.autocast('cpu', torch.bfloat16)
def product():
    return weight @ weight

print(product().dtype)
"""
    assert ["torch.float32"] == prints(body)


def test_autocast_inside_compiled_code_is_off_too() -> None:
    body = """
@torch.compile(backend='aot_eager', fullgraph=True)
def product(x):
    with torch.autocast('cpu', torch.bfloat16):
        return x @ x

print(product(weight).dtype)
"""
    assert ["torch.float32"] == prints(body)


@pytest.mark.parametrize(
    "call",
    [
        "torch.amp.GradScaler('cpu', init_scale=1024.0)",
        "torch.amp.GradScaler('cpu', 1024.0, 2.0, 0.5, 2000, True)",
        "torch.cpu.amp.GradScaler(1024.0)",
        "type('Own', (torch.amp.GradScaler,), {})('cpu')",
    ],
)
def test_a_scaler_scales_nothing_and_every_step_is_applied(call: str) -> None:
    body = f"""
scaler = {call}
optimizer = torch.optim.SGD([weight], lr=1.0)
before = weight.detach().clone()
loss = weight.sum()
print(scaler.scale(loss) is loss, scaler.is_enabled(), scaler.get_scale(), scaler.state_dict())
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
scaler.step(optimizer)
scaler.update()
scaler.load_state_dict({{}})
print(torch.allclose(before - weight, torch.ones(4, 4)))
"""
    assert ["True False 1.0 {}", "True"] == prints(body)


def test_autocast_that_was_off_stays_off_and_mistakes_of_its_call_stay_errors() -> None:
    body = """
print(torch.autocast('cpu', enabled=False)._enabled)
try:
    torch.autocast('no such device')
except RuntimeError as error:
    print('error')
"""
    assert ["False", "error"] == prints(body)
