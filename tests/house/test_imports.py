"""Imports point one way, torch is where it has to be and nowhere else, and few files touch what is not ours."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.house import tree

WITHOUT_TORCH = (
    "canary",
    "client",
    "counters",
    "doctor",
    "environment.cgroups",
    "environment.command_line",
    "environment.settings",
    "environment.source_control",
    "export",
    "importing",
    "journal",
    "launcher",
    "recorded",
    "redaction",
    "report",
    "shipper",
    "verdicts",
    "wire",
)
INSIDE_THE_PROGRAM = "launcher.inside"
"""The part of the launcher that runs in the training process."""

SETS_ATTRIBUTES = {"patch.py": "patches are reversible and all in one module"}

READS_ENVIRONMENT = {
    "agent/ammeter/environment/settings.py": "the agent's settings",
    "agent/ammeter/environment/identity.py": "which run and rank: what launchers set, and AMMETER_RUN_ID before them",
    "agent/ammeter/watching/setup.py": "LOCAL_WORLD_SIZE, which is the launcher's",
    "agent/ammeter/launcher/__init__.py": "hands the environment on to the command, and its own options",
    "agent/ammeter/launcher/result.py": "sets the number of numpy's threads in the process of `ammeter run`",
    "agent/ammeter/shipper/process.py": "hands a part of the environment on to the shipper",
    "server/ammeter_server/config/settings.py": "the collector's settings",
    "server/ammeter_server/cli/demo/__init__.py": "hands the environment on to the processes it starts",
}


@pytest.mark.parametrize("package", [tree.AGENT, tree.SERVER], ids=["agent", "server"])
def test_what_needs_no_torch_does_not_import_it(package: Path) -> None:
    bare = [
        path
        for name, path in tree.modules(package).items()
        if package == tree.SERVER or (name.startswith(WITHOUT_TORCH) and not name.startswith(INSIDE_THE_PROGRAM))
    ]
    assert bare
    found = [(path.name, name) for path in bare for name in tree.imports(path) if name.partition(".")[0] == "torch"]
    assert [] == found


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60)


def test_importing_ammeter_does_not_import_torch() -> None:
    done = run("import sys, ammeter; print('torch' in sys.modules)")
    assert "False\n" == done.stdout, done.stderr


TORCH_IS_MISSING = "import sys; sys.modules['torch'] = None\n"


def test_the_shipper_runs_where_torch_is_not_installed(tmp_path: Path) -> None:
    program = TORCH_IS_MISSING + "from ammeter.__main__ import main; sys.exit(main(sys.argv[1:]))"
    done = run(program, "ship", str(tmp_path), "--once", "--url", "http://127.0.0.1:9")
    assert 0 == done.returncode, done.stderr


def test_the_report_runs_where_torch_is_not_installed(tmp_path: Path) -> None:
    program = TORCH_IS_MISSING + "from ammeter.__main__ import main; sys.exit(main(sys.argv[1:]))"
    done = run(program, "report", str(tmp_path))
    assert (2, "") == (done.returncode, done.stdout), done.stderr
    assert "there is no journal" in done.stderr


def test_the_collector_starts_where_torch_is_not_installed(tmp_path: Path) -> None:
    program = TORCH_IS_MISSING + (
        "from ammeter_server import __main__; from ammeter_server.cli import demo\n"
        "from ammeter_server.app import create_app\n"
        "from ammeter_server.config.settings import Settings\n"
        "app = create_app(Settings(database_url=sys.argv[1]))\n"
        "app.state.context.store.close(); print('made')"
    )
    done = run(program, f"sqlite:///{tmp_path / 'collector.db'}")
    assert "made\n" == done.stdout, done.stderr


def test_only_the_patches_set_attributes_of_other_peoples_objects() -> None:
    found = {
        path.name
        for path in tree.modules(tree.AGENT).values()
        for node in ast.walk(tree.syntax(path))
        if _sets_an_attribute(node) or _assigns_to_what_was_imported(node, path)
    }
    assert set(SETS_ATTRIBUTES) == found


def _sets_an_attribute(node: ast.AST) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    names = ("setattr", "__setattr__", "delattr")
    return (isinstance(called, ast.Name) and called.id in names) or (
        isinstance(called, ast.Attribute) and called.attr in names
    )


def _assigns_to_what_was_imported(node: ast.AST, path: Path) -> bool:
    if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete):
        return False
    targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]
    roots = {_root(target) for target in targets if isinstance(target, ast.Attribute)}
    return bool(roots & _imported(path))


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


@cache
def _imported(path: Path) -> set[str]:
    return {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree.syntax(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def test_the_environment_is_read_in_few_places_and_each_has_its_reason() -> None:
    found = {
        str(path.relative_to(tree.ROOT))
        for package in (tree.AGENT, tree.SERVER)
        for path in tree.modules(package).values()
        for node in ast.walk(tree.syntax(path))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv") and _root(node) == "os"
    }
    assert set(READS_ENVIRONMENT) == found


def test_only_one_file_of_the_agent_speaks_http() -> None:
    clients = ("urllib3", "urllib.request", "http.client", "requests", "httpx", "socketserver", "aiohttp")
    found = {
        name
        for name, path in tree.modules(tree.AGENT).items()
        if any(imported.startswith(clients) for imported in tree.imports(path))
    }
    assert {"shipper.http"} == found
