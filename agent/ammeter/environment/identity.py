"""Finds the run id and rank of this process, without waiting for other ranks."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

log = logging.getLogger("ammeter")

NAMESPACE = uuid.UUID("5b0c6f0e-93a5-5c59-9b5f-0f5a3f1f7d11")
"""Namespace of the UUIDv5 made from a name in AMMETER_RUN_ID. It never changes, so that all ranks derive the same
id."""

SCHEDULER_JOB_IDS = ("SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID")
_JOB_IDS = (*SCHEDULER_JOB_IDS, "TORCHELASTIC_RUN_ID")
_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
"""W3C Trace Context, version 00. OpenTelemetry hands it on in the environment as TRACEPARENT."""
_STORE_KEY = "ammeter/run_id"


def run_id(project: str, environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Returns (run id, name): the UUID shared by this job's ranks, and its name.

    The name is the text of AMMETER_RUN_ID if that is not a UUID, else ''. Sources of the id, in this order:
    AMMETER_RUN_ID, torchrun's id if it is a UUID, the default store of torch.distributed, TORCHELASTIC_RUN_ID, a new
    one. torchrun --standalone generates a UUID, which survives a restart of the ranks while their store does not; an id
    typed by a person may be that of yesterday's job.
    """
    name = environment.get("AMMETER_RUN_ID", "")
    if name:
        return _from_name(name, project, environment)
    elastic_id = environment.get("TORCHELASTIC_RUN_ID", "none")
    shared_id = None if _is_uuid(elastic_id) else _id_in_store()
    if shared_id:
        return shared_id, ""
    if elastic_id != "none":
        return _from_name(elastic_id, project, environment)[0], ""
    _warn_of_separate_runs(environment)
    return str(uuid.uuid4()), ""


def rank(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Returns (rank, world size) from torch.distributed if initialized, else the launcher, else (0, 1)."""
    distributed = _distributed()
    if distributed is not None:
        return distributed.get_rank(), distributed.get_world_size()
    return int(environment.get("RANK", 0) or 0), int(environment.get("WORLD_SIZE", 1) or 1)


def launcher(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the launcher's restart limit, such as {"max_restarts": "2"}; empty without restarts."""
    max_restarts = environment.get("TORCHELASTIC_MAX_RESTARTS", "0")
    return {"max_restarts": max_restarts} if max_restarts != "0" else {}


def job(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the scheduler's job, such as {"job": "4711"}; empty outside of Slurm, LSF and PBS."""
    found = next((environment[key] for key in SCHEDULER_JOB_IDS if environment.get(key)), "")
    return {"job": found} if found else {}


def trace(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the trace that this process belongs to, {"traceparent": ...}, if its starter handed one on."""
    parent = environment.get("TRACEPARENT", "")
    return {"traceparent": parent} if _TRACEPARENT.fullmatch(parent) else {}


def host() -> str:
    """Returns the machine's name in lowercase, as GPU exporters label it."""
    return socket.gethostname().lower()


def _from_name(name: str, project: str, environment: Mapping[str, str]) -> tuple[str, str]:
    if _is_uuid(name):
        return str(uuid.UUID(name)), ""
    job = next((environment[key] for key in _JOB_IDS if environment.get(key)), "")
    return str(uuid.uuid5(NAMESPACE, "\0".join((project, name, job)))), name


def _is_uuid(text: str) -> bool:
    """Whether the text is a UUID that a run can have.

    UUIDs of the variant reserved for the future are assigned only by collectors.
    """
    try:
        return uuid.UUID(text).variant != uuid.RESERVED_FUTURE
    except ValueError:
        return False


def _warn_of_separate_runs(environment: Mapping[str, str]) -> None:
    """Warns once, on rank 0, that the ranks do not share a run id."""
    if environment.get("RANK") != "0" or rank(environment)[1] < 2 or _warned:
        return
    _warned.append(True)
    with suppress(Exception):  # the program's log handler may raise
        log.warning(
            "ammeter: watch() was called before init_process_group(), so the %s ranks are recorded as separate runs;"
            " call watch() afterwards, use `ammeter run`, or set AMMETER_RUN_ID",
            rank(environment)[1],
        )


_warned: list[bool] = []


def _id_in_store() -> str | None:
    """Returns the run id from the default store, which the first rank sets.

    compare_set returns at once; a get could block on a rank that never arrives.
    """
    distributed = _distributed()
    if distributed is None:
        return None
    try:
        store = distributed.distributed_c10d._get_default_store()
        return str(store.compare_set(_STORE_KEY, "", str(uuid.uuid4())).decode())
    except (AttributeError, RuntimeError, ValueError):
        return None  # a process group without a store, or a store that cannot compare


def _distributed() -> Any:
    """Returns torch.distributed if it is imported and initialized, else None."""
    distributed: Any = sys.modules.get("torch.distributed")
    return distributed if distributed and distributed.is_available() and distributed.is_initialized() else None
