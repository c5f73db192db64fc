"""Symptoms of the faults of kernels."""

from __future__ import annotations

import math

import pytest

from console import Summary
from tests.trainer.conftest import Seen
from tests.trainer.faults.runs import Check, symptoms

pytestmark = pytest.mark.long


def shows_kernel_nan(run: Summary, seen: Seen) -> None:
    assert 20 == run.applied
    assert all(map(math.isfinite, seen.losses[:20]))
    assert all(map(math.isnan, seen.losses[20:]))
    assert all(parameter.isfinite().all() for parameter in seen.model.parameters())


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
@pytest.mark.parametrize("name", symptoms(globals()))
def test_the_fault_shows_its_symptoms(name: str, arch: str, check: Check) -> None:
    check(name, arch, symptoms(globals())[name])
