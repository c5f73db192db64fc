"""Imports point one way, torch is where it has to be and nowhere else, and few files touch what is not ours."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import tree

AGENT_ORDER = (
    (
        "wire",
        "tap",
        "caller",
        "closures",
        "arguments",
        "directions",
        "identity",
        "source_control",
        "schedule",
        "run",
        "stats",
        "sharding",
        "shown",
        "runbook",
        "cgroups",
    ),
    ("redaction",),
    ("guarding", "settings"),
    ("block",),
    ("journal", "merging"),
    ("verdicts", "watched", "row", "forward", "losses"),
    ("notes", "environment"),
    ("seen",),
    ("tally",),
    ("overall", "folders"),
    ("comparing",),
    ("shipping", "directives"),
    ("ship",),
    ("probes",),
    ("boundary", "resting", "guards"),
    ("session",),
    ("start",),
    ("inside",),
    ("chronicle", "markdown"),
    ("report_text", "postmortem"),
    ("report",),
    ("gate",),
    ("launch", "doctor"),
    ("", "__main__"),
)
"""Files and packages of the agent, lowest first: a file imports what stands above its own line, or its own package."""

SERVER_ORDER = (
    (
        "",
        "plain",
        "records",
        "outcomes",
        "links",
        "runbook_text",
        "headers",
        "routes",
        "prices",
        "meters",
        "exposition",
        "points",
        "columns",
        "digits",
        "guesses",
        "head",
        "demo",
        "one_core",
    ),
    ("etags", "narrowing", "happened", "logs"),
    ("tables",),
    ("bulk",),
    ("store",),
    ("settings", "problems", "migrations", "progress", "kept", "compaction", "curves", "run_ids"),
    ("retention", "drawing", "cells", "storage", "ranks", "devices", "cost"),
    ("limits", "tokens", "listening", "successors", "samples"),
    ("quota", "pace", "scrape"),
    ("opening", "aside"),
    ("collector",),
    ("request_body", "pagination", "page", "reading", "checks", "boards"),
    ("auth", "append", "handling", "runbooks", "token_command"),
    ("intake", "admission", "readers"),
    ("ingest", "channels", "reach", "session", "audit"),
    ("courses", "alerts", "telling", "notify_command", "deletion"),
    ("beside", "objectives"),
    ("whole",),
    ("judge", "gathering", "runbook_pages"),
    ("sweeper", "keeper", "runs", "health", "rules", "openapi"),
    ("events", "series", "tensors", "incidents", "spectrum", "metrics"),
    ("matrix", "compare"),
    ("changes",),
    ("live",),
    ("app",),
    ("__main__",),
)

FOR_THE_SERVER = ("wire", "block", "merging", "verdicts", "redaction", "shown")
"""What the collector may use of the agent. redaction: it cuts secrets from what older agents send, and has to know the
same ones."""

WITHOUT_TORCH = (
    "wire",
    "redaction",
    "block",
    "journal",
    "merging",
    "tally",
    "overall",
    "seen",
    "verdicts",
    "ship",
    "shipping",
    "report",
    "report_text",
    "runbook",
    "folders",
    "comparing",
    "gate",
    "settings",
    "launch",
    "doctor",
    "cgroups",
)

SETS_ATTRIBUTES = {"tap.py": "the taps"}

READS_ENVIRONMENT = {
    "agent/ammeter/settings.py": "the agent's settings",
    "agent/ammeter/identity.py": "which run and rank: what launchers say, and AMMETER_RUN_ID before them",
    "agent/ammeter/start.py": "LOCAL_WORLD_SIZE, which is the launcher's",
    "agent/ammeter/launch/__init__.py": "hands the environment on to the command, and what it was told with it",
    "agent/ammeter/ship.py": "hands a part of the environment on to the shipper",
    "server/ammeter_server/settings.py": "the collector's settings",
    "server/ammeter_server/demo/__init__.py": "hands the environment on to the processes it starts",
}


def place(name: str, order: tuple[tuple[str, ...], ...]) -> int:
    """The line of a module in the order. Fails for one that has none."""
    first = name.partition(".")[0]
    found = [line for line, names in enumerate(order) if first in names]
    assert found, f"{first!r} has no place in the order; give it one in {Path(__file__).name} and in CONTRIBUTING.md"
    return found[0]


def upward(package: Path, order: tuple[tuple[str, ...], ...]) -> list[str]:
    """The arrows of a package that point up or sideways, 'probes.loss -> session'."""
    known = tree.modules(package)
    wrong = []
    for name, path in known.items():
        for imported in tree.imports(path):
            target = _module(imported, package.name, known)
            if target is None or target.partition(".")[0] == name.partition(".")[0]:
                continue
            if place(target, order) >= place(name, order):
                wrong.append(f"{name or package.name} -> {target or package.name}")
    return wrong


def _module(imported: str, package: str, known: dict[str, Path]) -> str | None:
    """The module of this package that a dotted name lies in; None for others' and for the package's __version__."""
    first, _, rest = imported.partition(".")
    if first != package or rest == "__version__":
        return None
    while rest and rest not in known:
        rest = rest.rpartition(".")[0]
    return rest


def test_imports_in_the_agent_point_one_way() -> None:
    assert [] == upward(tree.AGENT, AGENT_ORDER)


def test_imports_in_the_server_point_one_way() -> None:
    assert [] == upward(tree.SERVER, SERVER_ORDER)


def test_the_agent_knows_nothing_of_the_server() -> None:
    found = [(path.name, name) for path in tree.modules(tree.AGENT).values() for name in tree.imports(path)]
    assert [] == [each for each in found if each[1].startswith("ammeter_server")]


def test_of_the_agent_the_server_uses_frames_blocks_and_verdicts_only() -> None:
    known = tree.modules(tree.AGENT)
    used = {
        (path.name, _module(imported, "ammeter", known))
        for path in tree.modules(tree.SERVER).values()
        for imported in tree.imports(path)
    }
    assert [] == sorted(
        f"{name} -> {module}"
        for name, module in used
        if module is not None and module.partition(".")[0] not in FOR_THE_SERVER
    )


@pytest.mark.parametrize("package", [tree.AGENT, tree.SERVER], ids=["agent", "server"])
def test_what_needs_no_torch_does_not_import_it(package: Path) -> None:
    bare = [
        path
        for name, path in tree.modules(package).items()
        if package == tree.SERVER or name.partition(".")[0] in WITHOUT_TORCH
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
        "from ammeter_server import __main__, demo\n"
        "from ammeter_server.app import create_app\n"
        "from ammeter_server.settings import Settings\n"
        "app = create_app(Settings(database_url=sys.argv[1]))\n"
        "app.state.collector.store.close(); print('made')"
    )
    done = run(program, f"sqlite:///{tmp_path / 'collector.db'}")
    assert "made\n" == done.stdout, done.stderr


def test_only_tap_sets_attributes_of_other_peoples_objects() -> None:
    found = {
        path.name
        for path in tree.modules(tree.AGENT).values()
        for node in ast.walk(tree.syntax(path))
        if _sets_an_attribute(node) or _assigns_to_what_was_imported(node, tree.syntax(path))
    }
    assert set(SETS_ATTRIBUTES) == found


def _sets_an_attribute(node: ast.AST) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    names = ("setattr", "__setattr__", "delattr")
    return (isinstance(called, ast.Name) and called.id in names) or (
        isinstance(called, ast.Attribute) and called.attr in names
    )


def _assigns_to_what_was_imported(node: ast.AST, module: ast.Module) -> bool:
    if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete):
        return False
    targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]
    roots = {_root(target) for target in targets if isinstance(target, ast.Attribute)}
    return bool(roots & _imported(module))


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _imported(module: ast.Module) -> set[str]:
    return {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(module)
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


FOR_TYPES = ("sqlalchemy.Row", "sqlalchemy.Connection")


def test_only_the_tables_and_their_queries_know_sql() -> None:
    found = {
        name.partition(".")[0]
        for name, path in tree.modules(tree.SERVER).items()
        for imported in tree.imports(path)
        if imported.startswith(("sqlalchemy", "alembic")) and imported not in FOR_TYPES
    }
    assert {"tables", "bulk", "store", "migrations"} == found


def test_only_one_file_of_the_agent_speaks_http() -> None:
    clients = ("urllib3", "urllib.request", "http.client", "requests", "httpx", "socketserver", "aiohttp")
    found = {
        name
        for name, path in tree.modules(tree.AGENT).items()
        if any(imported.startswith(clients) for imported in tree.imports(path))
    }
    assert {"shipping.sending"} == found
