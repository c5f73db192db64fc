"""Makes the reference trainer importable.

The trainer is a program rather than a package: its folder has to be on the import path.
"""

from __future__ import annotations

import sys

from bench.common.paths import ROOT

sys.path.insert(0, str(ROOT / "trainer"))
from model import GPT, Shape

__all__ = ["GPT", "Shape"]
