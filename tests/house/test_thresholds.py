"""Each number that decides a verdict says where it comes from, in the lines below it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house import tree

FEWEST = 5
"""Words that a reason has at least; most have twenty and more."""


def files() -> list[Path]:
    return sorted((tree.AGENT / "verdicts").rglob("*.py"))


def is_number(node: ast.AST) -> bool:
    """A number, several of them, or what is reckoned from numbers alone."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and not isinstance(node.value, bool)
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    return isinstance(node, ast.Tuple) and bool(node.elts) and all(map(is_number, node.elts))


def numbers(path: Path) -> Iterator[tuple[str, str]]:
    """(name, reason) of each number of a module; those that stand together have the reason below the last."""
    body = tree.syntax(path).body
    for at, node in enumerate(body):
        if isinstance(node, ast.Assign) and is_number(node.value):
            below = next((statement for statement in body[at + 1 :] if not is_assigned_number(statement)), None)
            is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            reason = str(below.value.value) if is_text else ""  # type: ignore[union-attr]
            yield ast.unparse(node.targets[0]), reason


def is_assigned_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and is_number(node.value)


def test_the_numbers_are_found() -> None:
    found = {name for path in files() for name, _ in numbers(path)}
    assert {"MAX_ACCIDENTAL_SKIPS", "INVERSE_INFINITE_SCALE", "(MIN_FAR_READINGS, AMONG_READINGS)"} <= found
    assert len(found) > 50


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_every_number_says_where_it_comes_from(path: Path) -> None:
    assert [] == [name for name, reason in numbers(path) if len(reason.split()) < FEWEST]
