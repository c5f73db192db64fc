"""The variable by which `ammeter canary` switches mixed precision off in the first of its two runs."""

from __future__ import annotations

from collections.abc import Mapping

VARIABLE = "AMMETER_CANARY"


def switched_off_by(canary: int) -> dict[str, str]:
    """Returns the variable for an `ammeter run` that this canary process starts."""
    return {VARIABLE: f"float32:{canary}"}


def inherited(environment: Mapping[str, str], parent: int) -> dict[str, str]:
    """Returns the environment, without the variable unless a canary process is the parent of this `ammeter run`.

    A variable that was exported or left over must not change the precision of a training.
    """
    own = switched_off_by(parent)
    return {name: value for name, value in environment.items() if name != VARIABLE or value == own[VARIABLE]}


def switches_off(environment: Mapping[str, str]) -> bool:
    """Whether this process is below an `ammeter run` that a canary has started."""
    return VARIABLE in environment and "AMMETER_LAUNCH" in environment
