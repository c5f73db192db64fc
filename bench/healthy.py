"""Healthy trainings of the kinds that watchers take for broken ones: nothing is to be found in any of them."""

from bench import healthy_networks, healthy_runs  # noqa: F401 - their programs enter the list
from bench.healthy_training import PROGRAMS, Program

__all__ = ["PROGRAMS", "Program"]
