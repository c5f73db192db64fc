"""Determines the run of a command's processes, across their number and restarts."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from ammeter.environment import identity
from ammeter.launcher.command import value_of

_TASK_COUNTS = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Variables in which a launcher passes the number of processes that it has started."""


def determine_run(environment: Mapping[str, str], command: Sequence[str]) -> tuple[str | None, str]:
    """Returns (run id, the name it is derived from or '').

    The id comes from, in this order: AMMETER_RUN_ID, the job step of Slurm, the rendezvous id on the command line, a
    new id. It is None, so that the ranks agree on one, if other tasks or nodes run a part of this run and could not
    know a new id.
    """
    project = environment.get("AMMETER_PROJECT", "") or "default"
    if environment.get("AMMETER_RUN_ID", ""):
        return identity.run_id(project, environment)
    shared_id = _slurm_step(environment) or _rendezvous_id(command)
    if shared_id:
        return identity.run_id(project, {**environment, "AMMETER_RUN_ID": shared_id})[0], ""
    if _is_one_of_several_tasks(environment) or _has_several_nodes(command):
        return None, ""
    return str(uuid.uuid4()), ""


def _slurm_step(environment: Mapping[str, str]) -> str:
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
    return f"{job}.{step}" if job and step else ""


def _rendezvous_id(command: Sequence[str]) -> str:
    rendezvous_id = value_of(command, "--rdzv-id", "--rdzv_id") or ""
    return "" if rendezvous_id == "none" else rendezvous_id


def _is_one_of_several_tasks(environment: Mapping[str, str]) -> bool:
    return any(environment.get(name, "1") not in ("", "1") for name in _TASK_COUNTS)


def _has_several_nodes(command: Sequence[str]) -> bool:
    nodes = value_of(command, "--nnodes", "--num_machines", "--num-machines")
    return nodes is not None and nodes not in ("1", "1:1")
