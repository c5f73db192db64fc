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

MOST = {"debug": 33, "on-call": 57}
"""Number of grid rows drawn per board; the board continues below them."""


def main(seconds: int) -> None:
    with tempfile.TemporaryDirectory() as place, fleet(Path(place)) as there:
        train(there)
        begin = time.time()
        time.sleep(seconds)
        found = {name: read(there, name, begin, time.time()) for name in BOARDS}
    for name, board in found.items():
        draw(name, board)


def train(there: Fleet) -> None:
    """Trains all kinds of runs at once, so that each panel has data throughout."""
    base = there.train("float32", "float32")
    half = there.train("float16", "float16", baseline="float32")
    there.train("bfloat16", "bfloat16", baseline="float32")
    there.train("nan", "nan")
    there.train("raises", "raises", 100)
    there.recorded = Recorded(there.collector.url)
    there.pairs = [(half.run, base.run), there.recorded.pair]


def read(there: Fleet, name: str, begin: float, end: float) -> dict[str, Any]:
    """Returns the board with the results of its panels for the last minutes."""
    board = BOARDS[name]
    panels = [each for each in board["panels"] if each["gridPos"]["y"] + each["gridPos"]["h"] <= MOST.get(name, 99)]
    for panel in panels:
        panel["found"] = []
        for target in panel.get("targets", ()):
            pairs = there.pairs if "vs_baseline" in target["expr"] else there.pairs[:1]
            for query in sorted({filled(target["expr"], board, pair, f"{end - begin:.0f}s") for pair in pairs}):
                course = panel["type"] == "timeseries"
                series = there.prometheus.course(query, begin, end, 2) if course else there.prometheus.ask(query)
                panel["found"] += [{**each, "legend": target.get("legendFormat", "")} for each in series]
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
