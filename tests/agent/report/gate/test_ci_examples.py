"""The commands of the CI examples run as they are written, in a repository with a train.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.house import tree

pytestmark = pytest.mark.long

EXAMPLES = tree.ROOT / "examples"

TRAIN = """
import sys, time, torch

torch.manual_seed(0)
torch.set_num_threads(1)
half = sys.argv[1:] == ["--precision", "bf16"]
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(40):
    time.sleep(0.02 if half else 0.04)  # bfloat16 is as much faster as on a device that is made for it
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
"""


def commands(name: str) -> list[str]:
    document: dict[str, Any] = yaml.safe_load((EXAMPLES / name).read_text())
    if name.startswith("github"):
        return [step["run"] for step in document["jobs"]["gate"]["steps"] if "run" in step]
    return list(document["mixed-precision"]["script"])


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yml")))
def test_the_commands_of_an_example_train_twice_and_write_the_result(name: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    environment = os.environ | {"PATH": f"{programs(tmp_path)}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("AMMETER_DIR", None)
    lines = commands(name)
    assert 4 == len(lines)
    for line in lines:
        done = subprocess.run(
            ["bash", "-e", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert 0 == done.returncode, (line, done.stdout, done.stderr)
    assert "pip install -r requirements.txt ammeter" == lines[0]
    assert ["install", "-r", "requirements.txt", "ammeter"] == (tmp_path / "installed").read_text().split()
    suite = ElementTree.parse(tmp_path / "reports" / "ammeter.xml").getroot()[0]
    assert ["settings", "speed", "memory", "validation", "findings"] == [case.attrib["name"] for case in suite]


def programs(folder: Path) -> Path:
    """The programs of an environment in which Ammeter is installed. pip only notes its words: tests install nothing."""
    bin = folder / "bin"
    bin.mkdir()
    for name, body in {
        "ammeter": f'exec {sys.executable} -m ammeter "$@"',
        "python": f'exec {sys.executable} "$@"',
        "pip": f'echo "$@" > {folder}/installed',
    }.items():
        (bin / name).write_text(f"#!/bin/sh\n{body}\n")
        (bin / name).chmod(0o755)
    return bin
