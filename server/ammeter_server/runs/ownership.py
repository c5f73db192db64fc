"""Whom a run belongs to, and the commit that it was started from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ammeter_server.db import Row

OWNER = "owner"
"""The tag with the person or the group that a run belongs to."""

COMMIT = "git_commit"
"""The fact of the environment in which the agent records the commit."""


DRIVER = "driver"
"""The fact of the environment in which the agent records the version of the NVIDIA driver."""

JOB = "job"
"""The fact of the environment in which the agent records the job id of Slurm, LSF or PBS."""


@dataclass(frozen=True)
class RunLabels:
    """What people call a run. owner, commit: empty if unknown."""

    name: str
    project: str
    owner: str = ""
    commit: str = ""


def labels_of(run: Row[Any]) -> RunLabels:
    """Returns the labels of a row of the table runs."""
    return RunLabels(run.name, run.project, owner_of(run.tags), _text(run.environment, COMMIT))


def owner_of(tags: Mapping[str, Any] | None) -> str:
    """Returns the owner of a run, from its tags; empty without one."""
    return _text(tags, OWNER)


def columns_of(tags: Mapping[str, Any] | None, environment: Mapping[str, Any] | None) -> dict[str, str]:
    """Returns the columns of the table runs that copy labels, so that an index finds them."""
    labels = {"git_commit": _text(environment, COMMIT), "driver": _text(environment, DRIVER)}
    return {"owner": owner_of(tags), **labels}


def _text(values: Mapping[str, Any] | None, name: str) -> str:
    return str((values or {}).get(name) or "").strip()
