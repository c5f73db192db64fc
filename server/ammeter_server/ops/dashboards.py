"""GET /api/v1/dashboards/{name}: the Grafana boards, ready to import or to provision."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter, Response

from ammeter_server.http.problems import Problem

router = APIRouter(tags=["metrics"])

FOLDER = files("ammeter_server") / "assets" / "boards"
"""In the source tree a symbolic link to dashboards/boards; in the installed package a folder."""


CONTENT = {"application/json": {"schema": {"type": "object", "required": ["uid", "panels"]}}}


@router.get(
    "/api/v1/dashboards/{name}",
    summary="A Grafana board",
    response_class=Response,
    responses={200: {"content": CONTENT}},
)
def read_board(name: str) -> Response:
    """Returns the board's JSON model.

    Its datasource is a variable, to be chosen in the board.
    """
    if name not in names():
        raise Problem(404, f"there is no dashboard {name[:80]!r}; there are {', '.join(names())}")
    return Response((FOLDER / f"{name}.json").read_bytes(), media_type="application/json")


def names() -> list[str]:
    """The names of all boards."""
    return sorted(file.name.removesuffix(".json") for file in FOLDER.iterdir() if file.name.endswith(".json"))
