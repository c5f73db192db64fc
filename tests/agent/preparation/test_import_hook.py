"""The notes start after the import of torch, in whatever order a program imports it and ammeter."""

from __future__ import annotations

import subprocess
import sys

import pytest

REPORTS = """
import sys
from ammeter.torch_hooks import patch
print("Optimizer.__init__" in patch.attached(), "torch._dynamo" in sys.modules)
print([finder for finder in sys.meta_path if "ammeter" in type(finder).__module__])
"""


@pytest.mark.parametrize(
    ("imports", "noted"),
    [
        ("import ammeter, importlib.util\nimportlib.util.find_spec('torch')\nimport torch", True),
        ("import torch\nimport ammeter", True),
        ("import os\nos.environ['AMMETER_DISABLE'] = '1'\nimport torch\nimport ammeter", False),
    ],
    ids=["ammeter first", "torch first", "switched off"],
)
def test_calls_are_noted_after_both_imports(imports: str, noted: bool) -> None:
    done = subprocess.run([sys.executable, "-c", imports + REPORTS], capture_output=True, text=True, timeout=120)
    assert f"{noted} False\n[]\n" == done.stdout, done.stderr
