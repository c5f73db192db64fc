"""Writes dashboards/boards/*.json, the Grafana boards. Run it after a change: python -m dashboards.generate

Boards are code so that every panel has a description and a unit, and every metric in them can be checked against
what the collector exports. grafana-foundation-sdk is needed here only; the JSON is what is shipped.
"""

from __future__ import annotations

import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import debug

BOARDS = Path(__file__).parent / "boards"


def main() -> None:
    BOARDS.mkdir(exist_ok=True)
    for name, board in boards().items():
        (BOARDS / f"{name}.json").write_text(text(board), encoding="utf-8")


def boards() -> dict[str, Dashboard]:
    """Every board by the name it is asked for with."""
    return {"debug": _numbered(debug.board())}


def text(board: Dashboard) -> str:
    """The board as it is stored."""
    model = json.loads(JSONEncoder().encode(board))
    return json.dumps({**model, "id": None}, sort_keys=True, indent=1) + "\n"


def _numbered(board: Dashboard) -> Dashboard:
    """Gives each panel the id that links to it use, in the order of the board; the board's own is Grafana's to give."""
    for number, panel in enumerate(board.panels or [], start=1):
        panel.id_val = number
    return board


if __name__ == "__main__":
    main()
