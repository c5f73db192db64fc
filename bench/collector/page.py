"""Measures the page in a real Chromium: a run of 1,000,000 steps and 400 tensors, and the list of 10,000 runs.

    python -m bench.collector.page [--quick] [--write [FOLDER]]

Sends the runs to a collector by HTTP, then opens their pages with an empty cache. A time ends when the page has drawn
what is named: the clock is the browser's, from the beginning of the navigation or from the end of the drag. --write
puts page.md into bench/results.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from selenium.webdriver import Chrome
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

from ammeter.wire import columns
from ammeter.wire.frames import SCALARS, Batch, Bye, Item, Schema, Tensor
from bench.collector import latencies, servers
from bench.collector.senders import Sender, feed
from bench.collector.synthetic_run import LOGGED_SCALARS, STEP_NS, Rank
from bench.common.machine import cpu_and_cores, drop_settings
from bench.common.options import benchmark_parser, parse_benchmark
from bench.common.tables import Row, markdown_table
from tests.server.browsing import chromium

ROWS = 1000
"""Steps of a request."""

NORMS_EVERY, MAXIMA_EVERY = 10, 100
"""Steps between readings of the two stats."""

PATIENCE_SECONDS = 120.0
"""Longest wait for a part of a page."""

CLOCK = """
window.drawn = {};
const isZoomed = (text) => text.includes("Steps ") && !text.includes("Loading all readings");
const seen = () => {
  const now = performance.now(), find = (selector) => document.querySelector(selector);
  const note = (name, isThere) => { if (!(name in drawn) && isThere) drawn[name] = now; };
  note("strip", find(".strip-row"));
  note("map", find("#heat canvas.cells[aria-label]"));
  note("zoom", window.dragged !== undefined && isZoomed(find("#health").textContent));
  note("idle", find("#run:not([aria-busy])") && find("#health canvas.strip-canvas"));
  note("rows", find("tbody tr"));
  note("sparks", find("tbody svg.spark"));
};
new MutationObserver(seen).observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
document.addEventListener("pointerup", () => { window.dragged ??= performance.now(); }, true);
"""
"""Notes when each part of a page is first there, in ms since the navigation began."""

BYTES = """
return [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
  .filter(({ startTime }) => startTime < drawn.strip).reduce((sum, { transferSize }) => sum + transferSize, 0);
"""


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        steps, tensors: Of the long run.
        runs: Runs in the list.
        times: Repetitions.
    """

    steps: int = 1_000_000
    tensors: int = 400
    runs: int = 10_000
    times: int = 9


QUICK = Plan(steps=4000, tensors=20, runs=30, times=2)


@dataclass(frozen=True)
class Measured:
    """All repetitions of one figure."""

    what: str
    unit: str
    values: Sequence[float]

    @property
    def cells(self) -> Row:
        low, high = min(self.values), max(self.values)
        return f"{self.what}, {self.unit}", *(f"{value:,.0f}" for value in (median(self.values), low, high))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = benchmark_parser(__doc__, quick="only checks that everything runs; the numbers are too small to keep")
    options = parse_benchmark(parser, arguments)
    drop_settings()
    load = os.getloadavg()[0]
    plan = QUICK if options.quick else Plan()
    lines = _lines(measure(plan), plan, load)
    print("\n".join(lines))
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        (options.write / "page.md").write_text("\n".join(lines) + "\n")
    return 0


def measure(plan: Plan) -> list[Measured]:
    """Sends the runs to an empty collector, and opens their pages."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ammeter-bench-")))
        server = servers.collector(folder)
        stack.callback(server.stop)
        rank = long_run(plan)
        feed(server, [Sender(rank, ROWS)])
        browser = stack.enter_context(chromium())
        browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": CLOCK})
        turns = [_open_run(browser, f"{server.url}/runs/{rank.run}") for _ in range(plan.times)]
        first, size, zoom, layers = zip(*turns, strict=True)
        latencies.send_runs(server, plan.runs, time.time_ns() - latencies.ENDED_NS_AGO, final_record=True)
        rows, sparks = zip(*(_open_list(browser, server.url) for _ in range(plan.times)), strict=True)
    of_run = f"run of {plan.steps:,} steps and {plan.tensors:,} tensors"
    of_list = f"list of {plan.runs:,} runs"
    return [
        Measured(f"{of_run}: curves drawn", "ms", first),
        Measured(f"{of_run}: bytes until then", "KB", [count / 1000 for count in size]),
        Measured(f"{of_run}: new points drawn after a drag", "ms", zoom),
        Measured(f"{of_run}: map of layers drawn after it is scrolled to", "ms", layers),
        Measured(f"{of_list}: rows drawn", "ms", rows),
        Measured(f"{of_list}: spark lines drawn", "ms", sparks),
    ]


@dataclass(frozen=True)
class LongRank(Rank):
    """A stream whose tensors are read in some of its steps."""

    def batches(self, rows: int) -> Iterator[Batch]:
        part = Rank(self.run, self.rank, rows, self.begin, self.schema).view
        values = part.values.copy()
        for stat, every in (("grad.norm", NORMS_EVERY), ("grad.absmax", MAXIMA_EVERY)):
            values[self.schema.span(stat)][:, np.arange(rows) % every > 0] = columns.ABSENT
        first: list[Item] = [self.hello]
        for begin in range(0, self.steps, rows):
            steps = part.steps + begin
            shifted = np.roll(values, begin // rows * MAXIMA_EVERY, axis=1)
            yield Batch([*first, columns.pack(columns.View(self.schema, steps, self.begin + steps * STEP_NS, shifted))])
            first = []

    def bye(self) -> Batch:
        return Batch(items=[Bye("closed", self.steps - 1, self.begin + self.steps * STEP_NS)], alive=False)


def long_run(plan: Plan) -> LongRank:
    """A run of that many steps and tensors."""
    tensors = tuple(Tensor(f"blocks.{at // 10}.part{at % 10}", (64, 64), "float32") for at in range(plan.tensors))
    schema = Schema((*SCALARS, *LOGGED_SCALARS), ("grad.norm", "grad.absmax"), tensors)
    return LongRank(str(uuid.uuid4()), 0, plan.steps, time.time_ns() - plan.steps * STEP_NS, schema, 1)


def _open_run(browser: Chrome, url: str) -> tuple[float, float, float, float]:
    """Returns ms until the curves are drawn, bytes until then, ms of a zoom, and of the map of layers."""
    _open(browser, url)
    strip = _drawn(browser, "strip")
    size = float(browser.execute_script(BYTES))
    _drawn(browser, "idle")
    canvas = browser.find_element(By.CSS_SELECTOR, ".strip-canvas")
    drag = ActionChains(browser).move_to_element_with_offset(canvas, -100, 0).click_and_hold()
    drag.move_by_offset(200, 0).release().perform()
    zoom = _drawn(browser, "zoom") - float(browser.execute_script("return dragged"))
    _open(browser, url)
    _drawn(browser, "idle")
    script = "window.scrolled = performance.now();"
    browser.execute_script(script + "document.getElementById('heat').scrollIntoView()")
    layers = _drawn(browser, "map") - float(browser.execute_script("return scrolled"))
    return strip, size, zoom, layers


def _open_list(browser: Chrome, url: str) -> tuple[float, float]:
    """Returns ms until rows, and until spark lines are drawn."""
    _open(browser, url)
    return _drawn(browser, "rows"), _drawn(browser, "sparks")


def _open(browser: Chrome, url: str) -> None:
    browser.get("about:blank")
    browser.execute_cdp_cmd("Network.clearBrowserCache", {})
    browser.get(url)


def _drawn(browser: Chrome, part: str) -> float:
    """Waits until a part of the page is drawn, and returns the ms from the navigation to it."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        at = browser.execute_script("return drawn[arguments[0]]", part)
        if at is not None:
            return float(at)
        time.sleep(0.05)
    raise RuntimeError(f"after {PATIENCE_SECONDS:.0f} s the page has not drawn its {part}")


def _lines(found: Sequence[Measured], plan: Plan, load: float) -> list[str]:
    return [
        "# The speed of the page",
        "",
        f"{cpu_and_cores()}; load before: {load:.1f}; {plan.times} repetitions in Chromium without a window, with an"
        " empty cache, collector and browser on the same machine; `python -m bench.collector.page`.",
        "",
        *markdown_table([("", "median", "lowest", "highest"), *(one.cells for one in found)]),
    ]


if __name__ == "__main__":
    sys.exit(main())
