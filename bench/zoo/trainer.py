"""Everything the zoo uses of the reference trainer: its program and its registry of faults."""

from __future__ import annotations

import bench.common.trainer  # noqa: F401 - puts the trainer's folder on the import path
import broken
import checkpoint
import data
from faults import REGISTRY, Expected, Fault
from options import build_parser, read_options

__all__ = ["REGISTRY", "Expected", "Fault", "broken", "build_parser", "checkpoint", "data", "read_options"]
