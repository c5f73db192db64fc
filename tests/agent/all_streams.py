"""Registers the streams of all verdicts, also those that a verdict's own test makes."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.agent import streams_kernels, streams_run, streams_scalers, streams_values  # noqa: F401 - registers its streams

for path in sorted((Path(__file__).parent / "verdicts").glob("*/test_*.py")):
    import_module(f"tests.agent.verdicts.{path.parent.name}.{path.stem}")
