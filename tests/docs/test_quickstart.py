"""docs/quickstart.md: every command works as it is written there, in its order, and prints what the page shows."""

from __future__ import annotations

import json
import re
import shutil
import socket
from pathlib import Path

import pytest

from tests.docs import shell
from tests.docs.blocks import blocks
from tests.house import tree

pytestmark = pytest.mark.long

PAGE = tree.ROOT / "docs" / "quickstart.md"
PORT = "8480"
INSTALLED_APART = {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_QUIET": "1"}
"""pip installs the two packages without a network; what they depend on is there. The 0 means no isolation."""


def test_every_command_of_the_page_works(tmp_path: Path) -> None:
    install, *others = [block.text for block in blocks(PAGE, "sh")]
    assert "pip install ./agent ./server\n" == install
    (program,) = (block.text for block in blocks(PAGE, "python"))
    (tmp_path / "train.py").write_text(program)
    output = shell.run(on_a_free_port("".join(others)), tmp_path)
    for shown in blocks(PAGE, "text"):
        assert plain(shown.text) in plain(output), shown.text
    assert "exit code 3" in output
    assert "This set-up works." in output
    assert 3 == len(list((tmp_path / "home" / ".ammeter").glob("*-*-*-*-*")))


def test_the_packages_can_be_installed_as_the_page_does(tmp_path: Path) -> None:
    ours = shutil.ignore_patterns("*.egg-info", "__pycache__", "*.so")
    for name in ("agent", "server"):
        shutil.copytree(tree.ROOT / name, tmp_path / name, ignore=ours, symlinks=False)
    target = tmp_path / "installed"
    shell.run(blocks(PAGE, "sh")[0].text, tmp_path, environment={**INSTALLED_APART, "PIP_TARGET": str(target)})
    assert {"ammeter", "ammeter_server"} <= {path.name for path in target.iterdir()}


def test_the_program_of_the_page_has_a_fault_only_if_it_is_asked_to(tmp_path: Path) -> None:
    (program,) = (block.text for block in blocks(PAGE, "python"))
    (tmp_path / "train.py").write_text(program)
    shell.run("ammeter run -- python train.py\nammeter report --json > report.json", tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert [] == report["findings"]
    assert (200, 0) == (report["summary"]["steps"], report["summary"]["skipped"])


def on_a_free_port(commands: str) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    assert PORT in commands
    return f"export AMMETER_SERVER_PORT={port}\n{commands.replace(PORT, port)}"


def plain(text: str) -> str:
    """Words without the line breaks of a terminal, and without numbers, which differ between processors."""
    return re.sub(r"\d[\d.e+-]*", "#", " ".join(text.split())).replace("verdicts", "verdict")
