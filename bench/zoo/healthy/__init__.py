"""Healthy programs that resemble broken ones: Ammeter must not find anything in them."""

from bench.zoo.healthy import networks, schedules  # noqa: F401 - they register their programs
from bench.zoo.healthy.training import PROGRAMS, Program

__all__ = ["PROGRAMS", "Program"]
