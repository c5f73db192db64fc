"""The last lines of `ammeter run` summarize the run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from ammeter import journal, launcher
from ammeter.launcher import result
from tests.agent.launcher.launched import STEPS
from tests.agent.launching import WAIT, launch
from tests.agent.programs import bye
from tests.agent.ship_parts import until

pytestmark = pytest.mark.long

IMPORTS = """
import os, sys
from ammeter.launcher import result
result.IMPORT_AFTER_SECONDS = {seconds}
thread = result.import_later()
thread.start()
{then}
thread.join()
print("ammeter.report.diagnosis" in sys.modules, os.environ.get("OPENBLAS_NUM_THREADS"))
"""


@pytest.mark.parametrize(
    ("seconds", "then", "printed"), [(0, "", "True 1"), (60, "thread.cancel()", "False None")], ids=["due", "cancelled"]
)
def test_what_the_result_needs_is_imported_while_the_command_runs(seconds: int, then: str, printed: str) -> None:
    code = IMPORTS.format(seconds=seconds, then=then)
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert printed == done.stdout.strip()


@pytest.mark.parametrize(("rank", "seconds", "imports"), [("0", 0, True), ("1", 0, False), ("0", 60, False)])
def test_the_launcher_of_the_first_rank_imports_while_the_command_runs_and_not_after_its_end(
    rank: str, seconds: int, imports: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("AMMETER_DIR", str(tmp_path))
    monkeypatch.setattr(result, "IMPORT_AFTER_SECONDS", seconds)
    called = threading.Event()
    monkeypatch.setattr(result, "_import", called.set)
    threads = threading.active_count()
    assert 3 == launcher.main(["--", sys.executable, "-c", "import time, sys; time.sleep(0.2); sys.exit(3)"])
    assert imports == called.is_set()
    until(lambda: threading.active_count() == threads, 10)


def test_an_old_life_of_the_same_run_is_not_this_commands(tmp_path: Path) -> None:
    run = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
    first = launch(STEPS + WAIT + "os.kill(os.getpid(), 9)", tmp_path / "a", AMMETER_RUN_ID=run).end()
    assert ("lost", "killed by SIGKILL") == bye(first.stream())
    again = launch(STEPS, tmp_path / "b", AMMETER_RUN_ID=run, AMMETER_DIR=str(first.folder)).end()
    assert "nothing wrong" in again.err or "run-lost" in again.err
    assert 2 == len(journal.streams(first.folder / run))


SAVES = """
folder = {folder!r}
step()
open(folder + "/run.pt", "w").close()
os.chmod(folder + "/run.pt", {mode})
torch.save(dict(model=model.state_dict(), optimizer=optimizer.state_dict()), folder + "/run.pt")
step()
"""

OTHERS = """
from ammeter.probes.checkpoint import exposure
exposure.accounts = lambda: (exposure.Account(54321),)  # this machine may have nobody else
"""


def test_that_others_can_read_the_checkpoints_is_noted_once_for_a_project_and_is_not_what_was_found(
    tmp_path: Path,
) -> None:
    place = tempfile.mkdtemp(dir="/tmp")
    os.chmod(place, 0o755)
    ends = []
    for _ in range(2):
        ends.append(launch(OTHERS + SAVES.format(folder=place, mode=0o644), tmp_path).end().err.splitlines()[1:])
    ends.append(launch(OTHERS + SAVES.format(folder=place, mode=0o666), tmp_path).end().err.splitlines()[1:])
    shutil.rmtree(place)
    assert [2, 1, 1] == [len(lines) for lines in ends], ends
    assert ["ammeter: nothing wrong was found"] * 2 == [lines[0].partition(";")[0] for lines in ends[:2]]
    assert all("; 1 ticket beside the training: checkpoint-exposed; " in lines[0] for lines in ends[:2])
    note = f"ammeter: note, printed once: The checkpoint {place}/run.pt, saved at step"
    assert ends[0][1].startswith(note)
    assert ends[2][0].startswith(
        "ammeter: Other users can read and replace the checkpoints (checkpoint-exposed, ticket);"
    )
