"""Renders board queries as pictures: python -m dashboards.pictures [SECONDS] writes docs/pictures/board-*.png

A real fleet trains for that time, a real Prometheus scrapes it, and a plain page draws each panel in its position. The
page is not Grafana: colours, axes and legends are its own. For developers, on a machine with prometheus and chromium.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.e2e.fleet import Fleet, Recorded, fleet
from tests.e2e.test_boards import BOARDS, filled
from tests.parts import need

ROOT = Path(__file__).parents[1]
PLOT = ROOT / "server" / "ammeter_server" / "web" / "static" / "vendor" / "uplot"
PICTURES = ROOT / "docs" / "pictures"
PAGE = Path(__file__).parent / "pictures.html"

UNIT, WIDTH, HEAD = 27, 1200, 44
"""Pixels: height of a Grafana grid row, page width, height of the title."""

MAX_GRID_ROWS = {"debug": 33, "on-call": 57}
"""Number of grid rows drawn per board; the board continues below them."""


def main(seconds: int) -> None:
    with tempfile.TemporaryDirectory() as place, fleet(Path(place)) as running:
        train(running)
        begin = time.time()
        time.sleep(seconds)
        boards_with_data = {name: read(running, name, begin, time.time()) for name in BOARDS}
    for name, board in boards_with_data.items():
        draw(name, board)


def train(running: Fleet) -> None:
    """Trains all kinds of runs at once, so that each panel has data throughout."""
    base = running.train("float32", "float32")
    half = running.train("float16", "float16", baseline="float32")
    running.train("bfloat16", "bfloat16", baseline="float32")
    running.train("nan", "nan")
    running.train("raises", "raises", 100)
    running.recorded = Recorded(running.collector.url)
    running.pairs = [(half.run, base.run), running.recorded.pair]


def read(running: Fleet, name: str, begin: float, end: float) -> dict[str, Any]:
    """Returns the board with the results of its panels for the last minutes."""
    board = BOARDS[name]
    panels = [
        panel
        for panel in board["panels"]
        if panel["gridPos"]["y"] + panel["gridPos"]["h"] <= MAX_GRID_ROWS.get(name, 99)
    ]
    for panel in panels:
        panel["found"] = []
        for target in panel.get("targets", ()):
            pairs = running.pairs if "vs_baseline" in target["expr"] else running.pairs[:1]
            for query in sorted({filled(target["expr"], board, pair, f"{end - begin:.0f}s") for pair in pairs}):
                course = panel["type"] == "timeseries"
                series = running.prometheus.course(query, begin, end, 2) if course else running.prometheus.ask(query)
                panel["found"] += [{**one, "legend": target.get("legendFormat", "")} for one in series]
    return {"title": board["title"], "panels": panels, "begin": begin, "end": end}


def draw(name: str, board: dict[str, Any]) -> None:
    """Draws the picture with headless Chromium."""
    plot = (PLOT / "uPlot.esm.js").read_text().rpartition("export {")[0]
    words = {"STYLE": (PLOT / "uPlot.min.css").read_text(), "PLOT": plot, "BOARD": json.dumps(board)}
    page = PAGE.read_text()
    for word, text in words.items():
        page = page.replace(f"/*{word}*/", text.replace("</", "<\\/"))
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "board.html").write_text(page)
        command = [need("chromium"), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={place}/profile", f"--window-size={WIDTH},{rows * UNIT + HEAD}"]
        command += [f"--screenshot={PICTURES / f'board-{name}.png'}", f"{place}/board.html"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 180)
