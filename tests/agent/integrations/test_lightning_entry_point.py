"""With AMMETER_LIGHTNING=1 Lightning gives each Trainer and Fabric a callback, through entry points of the package."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.agent.integrations import test_fabric, test_lightning
from tests.agent.integrations.trained import STEPS, Recorded, runs
from tests.house.tree import ROOT

pytestmark = test_lightning.pytestmark


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry points as an installation of the package has them, before those of an older one."""
    groups = tomllib.loads((ROOT / "agent" / "pyproject.toml").read_text())["project"]["entry-points"]
    folder = tmp_path / "site" / "ammeter-0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: ammeter\nVersion: 0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in groups.items()
    ]
    (folder / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("AMMETER_DIR", str(tmp_path / "runs"))


def _train(folder: Path, kind: str) -> None:
    if kind == "trainer":
        test_lightning.trained(folder, [])
    else:
        test_fabric.trained([])


@pytest.mark.parametrize("kind", ["trainer", "fabric"])
def test_a_program_is_watched_without_a_line(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMMETER_LIGHTNING", "1")
    _train(tmp_path, kind)
    recorded = Recorded(tmp_path / "runs")
    assert (STEPS, 3) == (len(recorded.rows.steps), len(recorded.logged("val_loss")))


@pytest.mark.parametrize("kind", ["trainer", "fabric"])
@pytest.mark.parametrize("value", ["", "0"])
def test_nobody_is_watched_who_does_not_ask(
    kind: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMMETER_LIGHTNING", value)
    _train(tmp_path, kind)
    assert [] == runs(tmp_path / "runs")


def test_a_setting_that_cannot_be_used_ends_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AMMETER_LIGHTNING", "1")
    monkeypatch.setenv("AMMETER_URL", "no address")
    _train(tmp_path, "trainer")
    assert "ammeter cannot watch this program (ValueError: AMMETER_URL is 'no address'" in caplog.text
    assert [] == runs(tmp_path / "runs")


@pytest.mark.parametrize("name", ["for_trainer", "for_fabric"])
def test_without_the_variable_nothing_is_imported(name: str) -> None:
    program = f"import sys, _ammeter_lightning as e; print(e.{name}(), " + "{'ammeter', 'torch'} & {*sys.modules})"
    environment: dict[str, Any] = {"PYTHONPATH": str(ROOT / "agent")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60)
    assert "[] set()\n" == done.stdout, done.stderr
