"""Writes dashboards/boards/*.json, the Grafana boards. Run it after a change: make dashboards

Boards are code so that every panel has a description and a unit, and every metric can be checked against what the
collector exports. grafana-foundation-sdk is needed here only; the JSON is shipped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import compare, debug, executive, on_call
from dashboards.board import built

BOARDS = Path(__file__).parent / "boards"

ALL = (executive.BOARD, on_call.BOARD, debug.BOARD, compare.BOARD)


def main() -> None:
    BOARDS.mkdir(exist_ok=True)
    for name, board in boards().items():
        (BOARDS / f"{name}.json").write_text(text(board), encoding="utf-8")


def boards() -> dict[str, Dashboard]:
    """Returns every board by name."""
    return {board.name: built(board) for board in ALL}


def text(board: Dashboard) -> str:
    """Serializes the board. Fields that the SDK leaves empty are dropped; Grafana applies its defaults."""
    model = _without_none(json.loads(JSONEncoder().encode(board)))
    return json.dumps({**model, "id": None}, sort_keys=True, indent=1) + "\n"


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(item) for name, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
