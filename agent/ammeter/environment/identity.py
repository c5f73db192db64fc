"""Which run this process belongs to, and which rank it is: agreed with the other ranks without waiting for any."""

from __future__ import annotations

import logging
import os
import socket
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

log = logging.getLogger("ammeter")

NAMESPACE = uuid.UUID("5b0c6f0e-93a5-5c59-9b5f-0f5a3f1f7d11")
"""Root of the UUIDv5 that a name in AMMETER_RUN_ID becomes."""

_JOB_IDS = ("SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID", "TORCHELASTIC_RUN_ID")
_STORE_KEY = "ammeter/run_id"


def run_id(project: str, environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """(run id, name): the UUID that all ranks of this job share, and the name it was made from, '' if none.

    In this order: AMMETER_RUN_ID, torchrun's id where it is a UUID, the default store of torch.distributed,
    TORCHELASTIC_RUN_ID, a new one. torchrun --standalone makes up a UUID, which stays when ranks are started again
    and their store does not; an id that a person has typed may be that of yesterday's job.
    """
    said = environment.get("AMMETER_RUN_ID", "")
    if said:
        return _from_name(said, project, environment)
    elastic = environment.get("TORCHELASTIC_RUN_ID", "none")
    agreed = None if _is_uuid(elastic) else _agreed_in_store()
    if agreed:
        return agreed, ""
    if elastic != "none":
        return _from_name(elastic, project, environment)[0], ""
    _tell_alone(environment)
    return str(uuid.uuid4()), ""


def rank(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """(rank, world size) from torch.distributed when it is up, else from the launcher, else (0, 1)."""
    distributed = _distributed()
    if distributed is not None:
        return distributed.get_rank(), distributed.get_world_size()
    return int(environment.get("RANK", 0) or 0), int(environment.get("WORLD_SIZE", 1) or 1)


def launcher(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """How often the launcher starts processes again that died, where it does: {"max_restarts": "2"}."""
    said = environment.get("TORCHELASTIC_MAX_RESTARTS", "0")
    return {"max_restarts": said} if said != "0" else {}


def host() -> str:
    """This machine's name, lowercase, as GPU exporters label it."""
    return socket.gethostname().lower()


def _from_name(said: str, project: str, environment: Mapping[str, str]) -> tuple[str, str]:
    if _is_uuid(said):
        return str(uuid.UUID(said)), ""
    job = next((environment[key] for key in _JOB_IDS if environment.get(key)), "")
    return str(uuid.uuid5(NAMESPACE, "\0".join((project, said, job)))), said


def _is_uuid(said: str) -> bool:
    """Whether it is one that a run can have: those of the variant that is kept for the future only collectors give."""
    try:
        return uuid.UUID(said).variant != uuid.RESERVED_FUTURE
    except ValueError:
        return False


def _tell_alone(environment: Mapping[str, str]) -> None:
    """One rank says it for all, once: what the others share they do not know."""
    if environment.get("RANK") != "0" or rank(environment)[1] < 2 or _told:
        return
    _told.append(True)
    with suppress(Exception):  # somebody's log handler may raise
        log.warning(
            "ammeter: watch() came before init_process_group(), so each of the %s ranks becomes a run of its own; call"
            " it afterwards, use `ammeter run`, or set AMMETER_RUN_ID",
            rank(environment)[1],
        )


_told: list[bool] = []


def _agreed_in_store() -> str | None:
    """The first rank to ask decides; compare_set answers at once, a get could block on a rank that never comes."""
    distributed = _distributed()
    if distributed is None:
        return None
    try:
        store = distributed.distributed_c10d._get_default_store()
        return str(store.compare_set(_STORE_KEY, "", str(uuid.uuid4())).decode())
    except (AttributeError, RuntimeError, ValueError):
        return None  # a process group without a store, or a store that cannot compare


def _distributed() -> Any:
    """torch.distributed with a process group; a process that has not imported it has none."""
    distributed: Any = sys.modules.get("torch.distributed")
    return distributed if distributed and distributed.is_available() and distributed.is_initialized() else None
