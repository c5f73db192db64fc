"""The benchmark of memory runs its programs, and computes what is added for a parameter and for a step."""

from __future__ import annotations

import pytest

from bench.agent.memory import __main__ as memory
from bench.agent.memory.__main__ import FEW_LAYERS, MANY_LAYERS

MIB = 2**20


@pytest.mark.long
def test_each_program_notes_its_memory_and_its_forks() -> None:
    found = memory.measure(1, 0.01)
    assert {(layers, watched) for layers in (FEW_LAYERS, MANY_LAYERS) for watched in (False, True)} == set(found)
    for (noted,) in found.values():
        assert noted["end"] >= MIB
        assert noted["fork"] > 0
        assert noted["batch"] > 0
    assert memory.added(found, FEW_LAYERS, "end")[0] > MIB


def test_memory_is_that_of_each_further_parameter_and_growth_that_of_each_step() -> None:
    bare = {"begin": 100 * MIB, "end": 100 * MIB + 800, "fork": 0.001, "batch": 0.002, "steps": 80}
    few = {**bare, "begin": 120 * MIB, "end": 120 * MIB + 1600, "fork": 0.0011}
    many = {**bare, "end": 120 * MIB + 1600 + 2 * (MANY_LAYERS - FEW_LAYERS) * 3072}
    found = {
        (FEW_LAYERS, False): [bare] * 2,
        (FEW_LAYERS, True): [few] * 2,
        (MANY_LAYERS, False): [bare] * 2,
        (MANY_LAYERS, True): [many] * 2,
    }
    lines = memory.report(found, load=0.0)
    assert "| KiB for each further parameter | 3.0 (3.0 to 3.0) |" in lines
    assert "| bytes by which a watched program grows in a step | 20.0 (20.0 to 20.0) |" in lines
    assert "| bytes by which the bare program grows in a step | 10.0 (10.0 to 10.0) |" in lines
    assert "| time of a fork, bare = 1 | 1.100 (1.100 to 1.100) |" in lines
