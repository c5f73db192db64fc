"""The variable that switches mixed precision off reaches only what a canary has started."""

from __future__ import annotations

import pytest

from ammeter.environment.canary import VARIABLE, inherited, switched_off_by, switches_off


def test_an_ammeter_run_that_a_canary_has_started_hands_the_variable_on() -> None:
    environment = {"HOME": "/root", **switched_off_by(4711)}
    assert environment == inherited(environment, 4711)


@pytest.mark.parametrize("value", ["", "1", "float32", "float32:4712", "float32:04711"])
def test_any_other_value_is_removed(value: str) -> None:
    assert {"HOME": "/root"} == inherited({"HOME": "/root", VARIABLE: value}, 4711)


def test_only_a_process_below_ammeter_run_switches_off() -> None:
    canary = switched_off_by(4711)
    assert [True, False, False] == [
        switches_off(environment)
        for environment in ({**canary, "AMMETER_LAUNCH": "/dev/shm/x"}, canary, {"AMMETER_LAUNCH": "/dev/shm/x"})
    ]
