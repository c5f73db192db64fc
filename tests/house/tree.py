"""Reads the repository for the house tests: tracked files, and Python files as syntax trees."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AGENT = ROOT / "agent" / "ammeter"
SERVER = ROOT / "server" / "ammeter_server"


@cache
def tracked() -> tuple[Path, ...]:
    """Returns every existing file under version control."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return tuple(path for path in paths if path.is_file() and not path.is_symlink())


@cache
def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def modules(package: Path) -> dict[str, Path]:
    """Maps module names in the package to files, without migrations.

    Examples: 'probes.scaler', '' for the package itself.
    """
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        if parts[:2] != ("migrations", "versions"):
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path) -> Iterator[str]:
    """Yields dotted names that a file imports when it runs, also inside functions.

    Type-checking imports are left out.
    """
    for node in _running(syntax(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _running(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"):
            yield from _running(child)


def faults_of_the_trainer() -> set[str]:
    """Returns the names of the functions with the decorator `fault`."""
    return {
        node.name.replace("_", "-")
        for path in (ROOT / "trainer" / "faults").glob("*.py")
        for node in syntax(path).body
        if isinstance(node, ast.FunctionDef)
        and any(
            isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "fault"
            for decorator in node.decorator_list
        )
    }


def fenced(page: Path, language: str) -> list[str]:
    """Returns the code blocks of a document in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
