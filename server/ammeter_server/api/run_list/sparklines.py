"""GET /api/v1/sparklines: loss and loss scale of several runs, as few values each, in one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
from fastapi import APIRouter, Query, Response

from ammeter.wire.columns import Floats
from ammeter_server.api.series import names_of
from ammeter_server.auth.project_access import Project
from ammeter_server.context import ContextDep
from ammeter_server.curves import reader
from ammeter_server.curves.curve import Curve, CurveQuery
from ammeter_server.db.json_safe import number
from ammeter_server.db.queries import runs as query
from ammeter_server.http.problems import Problem

router = APIRouter(prefix="/api/v1/sparklines", tags=["runs"])

MAX_RUNS = 100
MAX_NAMES = 4
READ_POINTS = 200
"""Points that are read of a curve: its extremes and values that are not finite are among them."""

Runs = Annotated[str, Query(description="Ids, separated by commas; at most 100.")]
Names = Annotated[str, Query(description="Columns; at most 4.")]
Values = Annotated[int, Query(ge=8, le=96, description="Values of a line.")]


@dataclass(frozen=True)
class Sparklines:
    """The lines of a run's lowest rank in its newest attempt.

    Attributes:
        series: name -> values at evenly spaced steps. null where nothing was measured; "NaN", "Infinity" and
            "-Infinity" if any value there is not finite.
    """

    run: str
    series: dict[str, list[float | str | None]]


@dataclass(frozen=True)
class SparklineList:
    items: list[Sparklines]


@router.get("", summary="Small curves of several runs", responses={200: {"model": SparklineList}})
def list_sparklines(
    context: ContextDep, project: Project, runs: Runs, names: Names = "loss,scale", values: Values = 40
) -> Response:
    """Returns small curves of the runs that exist and may be read, in the requested order."""
    ids = list(dict.fromkeys(run for run in runs.split(",") if run))
    columns = names_of(names)
    if len(ids) > MAX_RUNS or len(columns) > MAX_NAMES:
        raise Problem(422, f"{len(ids)} runs and {len(columns)} names; use at most {MAX_RUNS} and {MAX_NAMES}")
    with context.store.reading() as connection:
        known = {run: row.project for run, row in query.existing(connection, ids).items()} if ids else {}
        streams = query.streams_of(connection, list(known)) if known else []
    lead: dict[str, tuple[int, int, str]] = {}
    for stream in streams:
        if stream.role == "rank" and stream.last_step is not None:
            lead[stream.run] = min(lead.get(stream.run, (2**31, 0, "")), (stream.rank, -stream.started, stream.id))
    items = []
    for run in ids:
        if run in lead and project in (None, known[run]):
            curves = reader.read(context.store, run, lead[run][2], CurveQuery(columns, READ_POINTS))
            items.append(Sparklines(run, {name: _spaced(curve, values) for name, curve in curves.items()}))
    return Response(msgspec.json.encode(SparklineList(items)), media_type="application/json")


def _spaced(curve: Curve, count: int) -> list[float | str | None]:
    """The last value before each of evenly spaced steps, or one that is not finite."""
    steps, values = curve.steps, curve.values
    count = min(count, int(steps[-1] - steps[0]) + 1)
    place = ((steps - steps[0]) * count) // max(1, int(steps[-1] - steps[0]) + 1)
    spaced: list[float | str | None] = [None] * count
    for index in np.unique(place).tolist():
        spaced[index] = number(_shown(values[place == index]))
    return spaced


def _shown(values: Floats) -> float:
    finite = np.isfinite(values)
    return float(values[-1] if finite.all() else values[~finite][0])
