"""Healthy trainings of the kinds that watchers take for broken ones: nothing is to be found in any of them."""

from bench.zoo.healthy import networks, schedules  # noqa: F401 - their programs enter the list
from bench.zoo.healthy.training import PROGRAMS, Program

__all__ = ["PROGRAMS", "Program"]
