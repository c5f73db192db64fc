"""Records this tree as the release that the next ones are held against: `python -m tests.compat.record`.

Builds the wheels without compiled code, trains a few runs, has a collector of these wheels store them in SQLite and in
PostgreSQL, and writes all of it to tests/compat/releases/VERSION. Name that version in release.py afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from sqlalchemy import text

from tests.compat import surface
from tests.compat.processes import Collector, Training
from tests.compat.release import Installation, install
from tests.e2e import stored
from tests.e2e.processes import wait_for
from tests.parts import need
from tests.server.databases import postgresql

ROOT = Path(__file__).parents[2]

RUNS = (
    {"steps": 1100, "name": "reference", "tags": {"team": "vision"}},
    {"steps": 300, "name": "candidate", "tags": {"baseline": "reference"}},
    {"steps": 120, "name": "broken", "bad_from": 60, "tags": {"team": "speech"}},
)


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # as in tests
    folder = Path(tempfile.mkdtemp(prefix="ammeter-record-"))
    wheels = folder / "wheels"
    build(wheels)
    version = next(wheels.glob("ammeter-*")).name.split("-")[1]
    record = Path(__file__).parent / "releases" / version
    shutil.rmtree(record, ignore_errors=True)
    record.mkdir(parents=True)
    for wheel in wheels.glob("*.whl"):
        pack(wheel, record / wheel.name)
    release = install(folder / "site", record)
    runs = train(release, folder / "training")
    journals = folder / "training" / "journals"
    keep_journals(journals, record / "journals")
    write(record / "reports.json", reports(release, record / "journals"))
    write(record / "public.json", surface.read())
    database = folder / "collector.db"
    fill(release, folder, runs, f"sqlite:///{database}")
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("VACUUM")
    shutil.copy(database, record / "collector.db")
    with postgresql(migrated=False) as url:
        release.run("ammeter_server", "migrate", "--database-url", url)
        fill(release, folder, runs, url)
        dump = subprocess.run(
            [need("pg_dump"), "--no-owner", "--no-privileges", url], check=True, capture_output=True, text=True
        ).stdout
    lines = [line for line in dump.splitlines() if not line.startswith(("\\restrict", "\\unrestrict", "-- Dumped"))]
    (record / "postgresql.sql").write_text("\n".join(lines) + "\n")
    shutil.rmtree(folder)
    print(f"{version} is recorded in {record}")


def build(wheels: Path) -> None:
    """Both wheels, pure Python."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(wheels)]
    command += [str(ROOT / "agent"), str(ROOT / "server")]
    subprocess.run(command, check=True, env={**os.environ, "CC": "false"})


def pack(wheel: Path, target: Path) -> None:
    """The same wheel, compressed as far as it goes."""
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made:
        for entry in source.infolist():
            made.writestr(entry, source.read(entry), zipfile.ZIP_DEFLATED, 9)


def train(release: Installation, folder: Path) -> list[str]:
    """Ids of the runs, in their order."""
    trainings = [Training(release, folder, project="compat", **run) for run in RUNS]  # type: ignore[arg-type]
    for training in trainings:
        training.wait()
    return [training.run for training in trainings]


def keep_journals(journals: Path, target: Path) -> None:
    """The segments, and the empty file by which a folder is known as a stream."""
    for file in sorted((*journals.rglob("*.seg"), *journals.rglob("alive"))):
        place = target / file.relative_to(journals)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)


def reports(release: Installation, journals: Path) -> dict[str, object]:
    """What the release reports of each run, as programs read it."""
    found: dict[str, object] = {}
    for run in sorted(journals.iterdir()):
        done = release.process("ammeter", "report", str(run), "--json")
        found[run.name] = {"exit": done.returncode, "report": json.loads(done.stdout)}
    return found


def fill(release: Installation, folder: Path, runs: list[str], database_url: str) -> None:
    """Ships copies of the journals, and waits until all of it is stored, judged and compacted."""
    copies = folder / f"copies-{time.time_ns()}"
    shutil.copytree(folder / "training" / "journals", copies)
    with Collector(release, folder, database_url) as collector:
        for run in runs:  # a baseline comes before the run that names it
            release.run("ammeter", "ship", str(copies / run), "--once", "--url", collector.url)
        wait_for(lambda: settled(database_url), "all of it is stored, judged and compacted", seconds=120)


def settled(database_url: str) -> bool:
    """Whether all streams are compacted and the run with a baseline is compared with it."""
    with stored.opened(database_url) as connection:
        finished = connection.execute(text("SELECT count(*) FROM compaction_leases WHERE finished")).scalar_one()
        compared = connection.execute(text("SELECT count(*) FROM runs WHERE length(evaluation) > 100")).scalar_one()
    return bool(finished == len(RUNS) and compared == 1)


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
