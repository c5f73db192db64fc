"""Takes the first screen of a run's page for each verdict: python -m website.first_screens [ID ...]

Trains the reference program with the verdict's fault, sends what it recorded to a real collector, as if the run still
trained, and takes what a person sees first: on a desktop and on a phone, light and dark. Pictures are in
build/first-screens, where recorded runs are kept for the next time. To look at
them: does each say what is wrong, whether the weights are safe, where it is, and what to do?
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # models are tiny: threads that wait for each other cost more
import httpx
import msgspec
from selenium import webdriver

from ammeter import journal
from ammeter.journal.find import find_runs
from ammeter.shipper.http import Collector
from ammeter.shipper.packing import build_payload
from ammeter.wire.frames import Batch, Bye, Event, Frame, Hello, Schema, Steps
from ammeter_server.judging.silent_streams import SILENCE_NS, STALL_NS, TICK_NS
from bench.zoo.plan import Case
from bench.zoo.runner import CLOCK_ADVANCE_NS, NEVER_ENDS, WatchedTraining, advanced_clock, load_texts, run_stalled
from tests.server.browsing import chromium, seen_as, show
from tests.server.feeding import serving, wait_until
from website.pages import ROOT
from website.pictures.training import cases

HEARTBEAT_SECONDS = 3.0
OUT = ROOT / "build" / "first-screens"
SIZES = {"desktop": (1400, 900), "phone": (390, 844)}
SCHEMES = ("light", "dark")
DIED = "run-lost"
"""The verdict whose run has no end of its own: its journal is sent as it is."""

PATIENCE_SECONDS = 8.0
"""How long the collector may take for an incident, before the run's end is sent, and after it."""


def main(verdicts: Sequence[str]) -> int:
    """Returns the number of verdicts whose run has no incident of their name."""
    chosen = {name: case for name, case in cases().items() if not verdicts or name in verdicts}
    OUT.mkdir(parents=True, exist_ok=True)
    for name, case in chosen.items():
        record(case, OUT / "journals" / name)
    at_once = [name for name in chosen if name != NEVER_ENDS]
    with chromium() as browser:
        return take_all(browser, at_once) + (take_stalled(browser) if NEVER_ENDS in chosen else 0)


def take_all(browser: webdriver.Chrome, names: Sequence[str]) -> int:
    """Takes the first screens of these verdicts' runs. Returns how many have no incident of their name."""
    missed = 0
    with collector_with(names) as (client, runs):
        for name, run in runs.items():
            found = incident(client, run.name, name)
            if not found:
                send(client, run, name, lag_of(run))
                found = incident(client, run.name, name)
            missed += not take(browser, client, run.name, name, found)
    return missed


def take_stalled(browser: webdriver.Chrome) -> int:
    """Does the same for the run that stalls, with the clock advanced until its verdict is reached."""
    with collector_with([NEVER_ENDS]) as (client, runs), advanced_clock(STALL_NS):
        time.sleep((SILENCE_NS + 2 * TICK_NS) / 1e9)  # the collector's clock has jumped, so that it waits this long
        with advanced_clock(CLOCK_ADVANCE_NS):
            time.sleep((SILENCE_NS + 2 * TICK_NS) / 1e9)
            run = runs[NEVER_ENDS].name
            return not take(browser, client, run, NEVER_ENDS, incident(client, run, NEVER_ENDS))


@contextmanager
def collector_with(names: Sequence[str]) -> Iterator[tuple[httpx.Client, dict[str, Path]]]:
    """A collector with the runs of these verdicts, whose shippers live."""
    with tempfile.TemporaryDirectory() as place, serving(Path(place)) as client:
        runs = {name: deliver(client, OUT / "journals" / name, name) for name in names}
        threading.Thread(target=keep_alive, args=(client, runs), daemon=True).start()
        yield client, runs


def record(case: Case, folder: Path) -> None:
    """Trains, unless it has been done before."""
    if (folder / "done").exists():
        return
    load_texts()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # a fault lets everybody read its checkpoint
    watched = WatchedTraining(case, folder / "watched")
    if case.what == NEVER_ENDS:
        run_stalled(watched)
    else:
        watched.train()
    (folder / "done").write_text(watched.baseline or "")


def deliver(client: httpx.Client, folder: Path, name: str) -> Path:
    """Sends the baseline, if there is one, and the run without its end."""
    baseline = (folder / "done").read_text()
    run = find_runs(folder / "watched" / "journal")[0]
    if baseline:
        send(client, Path(baseline), name, lag_of(run))
    send(client, run, name, lag_of(run), is_ended=name == DIED)
    return run


def send(client: httpx.Client, run: Path, project: str, lag: int, *, is_ended: bool = True) -> None:
    """Sends all streams of a run, from where the collector has them, with their times moved by a lag in ns."""
    collector = Collector(str(client.base_url).rstrip("/"), None, lambda *_: None)
    for stream in journal.streams(run):
        whole = [entry for entry in journal.read(stream) if is_ended or not isinstance(entry.frame, Bye)]
        entries = [replace(entry, frame=_in(project, entry.frame, lag)) for entry in whole]
        begin = collector.send(run.name, stream.name, 0, entries[0].begin, Batch()).offset or 0
        made = build_payload([entry for entry in entries if entry.begin >= begin], _schema(entries))
        answer = collector.send(run.name, stream.name, begin, entries[-1].end, Batch(made.items, made.gaps))
        assert answer.status == 200, answer


@cache
def lag_of(run: Path) -> int:
    """Nanoseconds since the last step of a run, when it was sent first."""
    frames = [entry.frame for stream in journal.streams(run) for entry in journal.read(stream)]
    return time.time_ns() - max(frame.time for frame in frames if isinstance(frame, Steps))


def _in(project: str, frame: Frame, lag: int) -> Frame:
    """The frame at a later time, in a project for each verdict, so that its baseline is that of no other run."""
    if isinstance(frame, Hello):
        tags = {**frame.tags, "baseline": "baseline"}
        return msgspec.structs.replace(frame, project=project, tags=tags, started=frame.started + lag)
    return msgspec.structs.replace(frame, time=frame.time + lag) if isinstance(frame, Steps | Event | Bye) else frame


def _schema(entries: Sequence[journal.Entry]) -> Schema | None:
    return next((entry.frame.schema for entry in entries if isinstance(entry.frame, Hello)), None)


def keep_alive(client: httpx.Client, runs: Mapping[str, Path]) -> None:
    """Sends what a shipper sends while nothing is new, or the runs would be lost soon."""
    collector = Collector(str(client.base_url).rstrip("/"), None, lambda *_: None)
    alive = {name: run for name, run in runs.items() if name != DIED}
    while True:
        for run in alive.values():
            for stream in journal.streams(run):
                end = collector.send(run.name, stream.name, 0, 0, Batch()).offset or 0
                collector.send(run.name, stream.name, end, end, Batch())
        time.sleep(HEARTBEAT_SECONDS)


def incident(client: httpx.Client, run: str, verdict: str) -> str:
    """Returns the title of the run's incident with this verdict, once there is one, or ""."""

    def look() -> str:
        items = client.get(f"/api/v1/runs/{run}/incidents").json().get("items", [])
        return next((str(item["title"]) for item in items if item["verdict"] == verdict), "")

    try:
        return str(wait_until(look, PATIENCE_SECONDS))
    except AssertionError:
        return ""


def take(browser: webdriver.Chrome, client: httpx.Client, run: str, name: str, title: str) -> bool:
    """Takes the first screen in each size and scheme, and prints what lies below it. Returns whether it has a title."""
    if not title:
        print(f"{name}: the collector has no such incident", file=sys.stderr)
    show(browser, client, f"/runs/{run}")
    with suppress(AssertionError):
        wait_until(lambda: browser.execute_script(READY), PATIENCE_SECONDS)
    below = ""
    for size, (width, height) in SIZES.items():
        for scheme in SCHEMES:
            with seen_as(browser, scheme, width, height):
                browser.execute_async_script(PAINTED)
                browser.save_screenshot(str(OUT / f"{name}-{size}-{scheme}.png"))
                hidden = browser.execute_script(BELOW, PARTS)
        below += f"; below on a {size}: {', '.join(hidden)}" if hidden else ""
    print(f"{name}: {title}{below}", flush=True)
    return bool(title)


PARTS = {"cause": ".cause", "fix": ".fix", "weights": ".chip", "place": ".spot", "health": "#health .strip-row"}
"""The parts of the page that should be seen at once; on a phone, health may follow them."""

BELOW = """
const isShown = (element) => element && element.getBoundingClientRect().bottom <= innerHeight;
return Object.entries(arguments[0]).filter(([, part]) => !isShown(document.querySelector(part))).map(([name]) => name);
"""

PAINTED = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50)));"

READY = """
const facts = document.querySelector("#incidents .handling");
const isDone = !document.querySelector("#run[aria-busy]") && document.querySelector("#health .strip-row");
return isDone && (!facts || facts.childElementCount > 0);
"""

if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
