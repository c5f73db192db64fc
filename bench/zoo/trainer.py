"""Everything the zoo uses of the reference trainer: its program and its registry of faults."""

from __future__ import annotations

import bench.common.trainer  # noqa: F401 - puts the trainer's folder on the import path
import checkpoint
import data
import train
from breaking import Told
from faults import REGISTRY, Fault
from options import build_parser, read_options

__all__ = ["REGISTRY", "Fault", "Told", "build_parser", "checkpoint", "data", "read_options", "train"]
