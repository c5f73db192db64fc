"""Draws the boards with Grafana's components: python -m dashboards.pictures [SECONDS] writes docs/pictures/board-*.webp

With a folder, python -m dashboards.pictures SECONDS FOLDER writes them there instead, in both of Grafana's themes.

A real fleet trains for that time and a real Prometheus scrapes it. A page in headless Chromium draws what the queries
of each panel return, with the packages that Grafana itself consists of: dashboards/render has their versions and the
page. For developers, on a machine with prometheus, chromium, node and npm.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from dashboards import rendering
from tests.e2e.fleet import Fleet, Recorded, fleet
from tests.e2e.queries import BOARDS, Pair, choices, chosen, panels_of, replaced

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"

BFLOAT16_STEPS = 1200
"""After which that run ends, within two minutes."""

STEP_SECONDS = 2
"""Between two points of a line."""


def main(seconds: int, folder: Path | None = None) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as place, fleet(Path(place)) as running:
        train(running)
        begin = time.time()
        time.sleep(seconds)
        pair = running.pairs[0]
        given = {name: read(running, name, begin, time.time(), pair, pair[0]) for name in BOARDS}
    rendering.install()
    with rendering.renderer() as renderer:
        for name, board in given.items():
            if folder is None:
                renderer.draw(board, PICTURES / f"board-{name}.webp")
            else:
                folder.mkdir(parents=True, exist_ok=True)
                for mode in get_args(rendering.Mode):
                    renderer.draw(board, folder / f"board-{name}-{mode}.webp", mode)


def train(running: Fleet) -> None:
    """Trains all kinds of runs at once, so that each panel has data throughout; two of them end."""
    running.train("nan", "nan")
    # Counters start at 0 in Prometheus: a run that ends before the first scrape of its project increases nothing.
    running.until_scraped("vision")
    base = running.train("float32", "float32")
    assert base.run  # a baseline begins before the runs that are compared with it
    running.train("bfloat16", "bfloat16", BFLOAT16_STEPS, baseline="float32", expected_hours="1")
    half = running.train("float16", "float16", baseline="float32")
    running.train("raises", "raises", 100)
    running.recorded = Recorded(running.collector.url)
    running.pairs = [(half.run, base.run), running.recorded.pair]


def read(running: Fleet, name: str, begin: float, end: float, pair: Pair, run: str = ".*") -> dict[str, Any]:
    """Returns what the page draws: the board's panels, and what Prometheus answers to their queries.

    Args:
        running: The fleet.
        name: Of the board.
        begin: Of the displayed time.
        end: Likewise.
        pair: The runs chosen where two are compared.
        run: The runs where several may be chosen.
    """
    board = BOARDS[name]
    values = chosen(board, pair, f"{end - begin:.0f}s", run)
    answers = {
        panel["id"]: {
            target["refId"]: _asked(running, target, replaced(target["expr"], values), begin, end)
            for target in panel["targets"]
        }
        for panel in panels_of(board)
    }
    return {
        "title": board["title"],
        "begin": begin,
        "end": end,
        "step": STEP_SECONDS,
        "variables": list(_selected(running, board, values)),
        "values": values,
        "panels": unfolded(board),
        "answers": answers,
    }


def _selected(running: Fleet, board: Mapping[str, Any], values: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yields label and text of the variables that are above a board."""
    for variable in board["templating"]["list"]:
        if variable["type"] == "datasource" or variable["hide"]:
            continue
        value = values[variable["name"]]
        offered = choices(running.prometheus, variable, values) if variable["type"] == "query" else []
        texts = {offer: text for text, offer in offered} | {".*": "All"}
        yield {"label": variable["label"], "text": texts.get(value, value)}


def _asked(running: Fleet, target: Mapping[str, Any], query: str, begin: float, end: float) -> list[Any]:
    if target.get("instant"):
        return running.prometheus.ask(query, end)
    return running.prometheus.course(query, begin, end, STEP_SECONDS)


def unfolded(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns rows and panels with their places when every row is open."""
    placed: list[dict[str, Any]] = []
    lower = 0
    for panel in board["panels"]:
        inside = panel.get("panels") or []
        for one in (panel, *inside):
            placed.append({**one, "gridPos": {**one["gridPos"], "y": one["gridPos"]["y"] + lower}})
        if inside:
            lower += max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in inside) - panel["gridPos"]["y"] - 1
    return placed


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 300, Path(sys.argv[2]) if sys.argv[2:] else None)
