"""The import contracts in .importlinter hold, and each of them fails where an import breaks it."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.house import tree

CONTRACTS = tree.ROOT / ".importlinter"
SECTION = "importlinter:contract:"
MAX_MODULES = 15
"""Of a package, without its __init__ and its subpackages. A reader takes in one screen of a folder's listing."""

BREAKS = {
    "server-layers": ("ammeter_server.db.engine", "ammeter_server.app"),
    "server-sql": ("ammeter_server.api.runs", "sqlalchemy"),
    "server-torch": ("ammeter_server.curves.reader", "torch"),
    "server-agent": ("ammeter_server.ops.metrics", "ammeter.shipper.http"),
    "agent-layers": ("ammeter.wire.frames", "ammeter.journal.reader"),
    "verdict-families": ("ammeter.verdicts.nonfinite.headroom", "ammeter.verdicts.loss_scale.scale_collapse"),
    "agent-torch": ("ammeter.report.markdown", "torch"),
    "agent-server": ("ammeter.shipper.packing", "ammeter_server.process.logging"),
}
"""Contract -> a module, and the import in it that the contract forbids."""


def _contracts() -> dict[str, str]:
    """The id of each contract and its name."""
    parser = configparser.ConfigParser()
    parser.read(CONTRACTS, encoding="utf-8")
    return {name.removeprefix(SECTION): parser[name]["name"] for name in parser.sections() if name.startswith(SECTION)}


def _lint(agent: Path, server: Path) -> subprocess.CompletedProcess[str]:
    """Runs lint-imports over the packages in two folders."""
    program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    return subprocess.run(
        [sys.executable, "-P", "-c", program, "--config", str(CONTRACTS), "--no-cache"],
        env=os.environ | {"PYTHONPATH": f"{agent}{os.pathsep}{server}", "COLUMNS": "500"},
        cwd=agent,
        capture_output=True,
        text=True,
        timeout=120,
    )


def _file(module: str) -> Path:
    return Path(*module.split(".")).with_suffix(".py")


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What lint-imports prints over a copy of both packages in which an import breaks each contract."""
    copy = tmp_path_factory.mktemp("broken")
    for package in (tree.AGENT, tree.SERVER):
        shutil.copytree(package, copy / package.name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "assets"))
    for module, imported in BREAKS.values():
        with (copy / _file(module)).open("a", encoding="utf-8") as file:
            file.write(f"\nimport {imported}\n")
    done = _lint(copy, copy)
    assert 1 == done.returncode, done.stdout + done.stderr
    return done.stdout


def test_the_tree_keeps_every_contract() -> None:
    done = _lint(tree.AGENT.parent, tree.SERVER.parent)
    assert 0 == done.returncode, done.stdout + done.stderr
    assert f"Contracts: {len(_contracts())} kept, 0 broken." in done.stdout


def test_every_contract_has_an_import_that_breaks_it() -> None:
    assert set(_contracts()) == set(BREAKS)


@pytest.mark.parametrize("contract", sorted(BREAKS))
def test_a_contract_fails_where_an_import_breaks_it(contract: str, broken: str) -> None:
    module, imported = BREAKS[contract]
    name = _contracts()[contract]
    assert f"{name} BROKEN" in broken
    explained = broken.partition("Broken contracts")[2].partition(f"\n{name}\n")[2].lstrip("-\n").partition("\n---")[0]
    assert f"{module} -> {imported} (l." in explained, explained


def test_every_folder_of_modules_is_a_package() -> None:
    """Without an __init__.py a folder is a namespace package, and lint-imports reads nothing of it."""
    folders = {path.parent for package in (tree.AGENT, tree.SERVER) for path in package.rglob("*.py")}
    loose = {str(path.relative_to(tree.ROOT)) for path in folders if not (path / "__init__.py").exists()}
    scripts = {"agent/ammeter/launcher/site", "server/ammeter_server/db/migrations/versions"}
    assert scripts == loose


def test_no_package_has_too_many_modules() -> None:
    counted = Counter(
        str(path.parent.relative_to(tree.ROOT))
        for package in (tree.AGENT, tree.SERVER)
        for path in tree.modules(package).values()
        if path.name != "__init__.py"
    )
    assert {} == {package: count for package, count in counted.items() if count > MAX_MODULES}
