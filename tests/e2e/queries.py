"""The boards, and their queries as Grafana sends them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.e2e.fleet import Prometheus

FOLDER = Path(__file__).parents[2] / "dashboards" / "boards"
BOARDS: dict[str, dict[str, Any]] = {file.stem: json.loads(file.read_text()) for file in FOLDER.glob("*.json")}

Pair = tuple[str, str]
"""The runs chosen where two are compared."""


def panels_of(board: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the panels of a board that are no rows, those in closed rows too."""
    for panel in board["panels"]:
        yield from ([panel] if panel["type"] != "row" else panel.get("panels") or [])


def chosen(board: Mapping[str, Any], pair: Pair, shown: str = "1h", run: str = ".*") -> dict[str, str]:
    """Returns the values of all variables.

    shown: how long a time is displayed. run: the runs where several may be chosen.
    """
    values = {"__rate_interval": "10s", "__range": shown, "project": ".*", "run": run}
    for variable in board["templating"]["list"]:
        if variable["type"] == "textbox":
            values[variable["name"]] = variable["query"]
    if board["uid"] == "ammeter-compare":
        values |= {"run": pair[0], "other": pair[1]}
    return values


def choices(prometheus: Prometheus, variable: Mapping[str, Any], values: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns text and value of what a variable offers, as Grafana reads them from Prometheus' answers."""
    query = replaced(variable["query"], values)
    if metric := re.fullmatch(r"label_values\((.+), (\w+)\)", query):
        found = {series["metric"][metric[2]] for series in prometheus.ask(metric[1])}
        return [(value, value) for value in sorted(found)]
    answers = prometheus.ask(query.removeprefix("query_result(").removesuffix(")"))
    lines = [_line(answer["metric"], answer["value"]) for answer in answers]
    pattern = re.compile(variable["regex"].strip("/").replace("(?<", "(?P<"))
    return [(match["text"], match["value"]) for match in map(pattern.search, lines) if match]


def _line(labels: Mapping[str, str], point: list[Any]) -> str:
    inside = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{{{inside}}} {point[1]} {point[0] * 1000}"


def filled(query: str, board: Mapping[str, Any], pair: Pair, shown: str = "1h") -> str:
    """Returns the query as Grafana sends it."""
    return replaced(query, chosen(board, pair, shown))


def replaced(query: str, values: Mapping[str, str]) -> str:
    """Returns the query with the values of variables."""
    for name, value in sorted(values.items(), key=lambda item: -len(item[0])):
        query = query.replace(f"${name}", value)
    return query
