"""Everything the benchmarks use of the reference trainer.

The trainer is a program rather than a package, so this module adds its folder to the import path.
"""

from __future__ import annotations

import sys

from bench.common.paths import ROOT

sys.path.insert(0, str(ROOT / "trainer"))
import checkpoint
import data
import train
from breaking import Told
from faults import REGISTRY, Fault
from model import GPT, Shape
from options import build_parser, read_options

__all__ = [
    "GPT",
    "REGISTRY",
    "Fault",
    "Shape",
    "Told",
    "build_parser",
    "checkpoint",
    "data",
    "read_options",
    "train",
]
