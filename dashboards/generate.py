"""Writes dashboards/boards/*.json, the Grafana boards. Run it after a change: make dashboards

Boards are code so that every panel has a description and a unit, and every metric can be checked against what the
collector exports. grafana-foundation-sdk is needed here only; the JSON is shipped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import compare, debug, executive, links, on_call
from dashboards.board import Board, built
from dashboards.variables import SOURCE

BOARDS = Path(__file__).parent / "boards"

UNKNOWN = ("auto", "auto_count", "auto_min", "id")
"""Members that the SDK gives every variable, and that Grafana's type of them does not have; `style` of a board."""

ALL = (executive.BOARD, on_call.BOARD, debug.BOARD, compare.BOARD)


def main() -> None:
    BOARDS.mkdir(exist_ok=True)
    for name, board in boards().items():
        (BOARDS / f"{name}.json").write_text(board, encoding="utf-8")


def boards() -> dict[str, str]:
    """Returns the JSON of every board by name."""
    return {board.name: text(board) for board in ALL}


def text(board: Board) -> str:
    """Serializes the board. Fields that the SDK leaves empty are dropped; Grafana applies its defaults."""
    model = _without_none(json.loads(JSONEncoder().encode(built(board))))
    model.pop("style", None)
    for variable in model["templating"]["list"]:
        for member in UNKNOWN:
            variable.pop(member, None)
    marks = {"list": links.incidents(board.incidents, str(SOURCE.uid))}
    return json.dumps({**model, "annotations": marks, "id": None}, sort_keys=True, indent=1) + "\n"


def _without_none(value: Any) -> Any:
    """Drops members without a value, except the lowest threshold, whose null is Grafana's minus infinity."""
    if isinstance(value, dict):
        is_threshold = {"color", "value"} == set(value)
        return {name: _without_none(item) for name, item in value.items() if item is not None or is_threshold}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
