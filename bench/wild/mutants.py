"""Mutants of healthy programs: one call dropped, moved or changed in the syntax tree.

Lines keep their numbers, so that a mutant is recorded and watched like any other program.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from bench.wild.faults import FAULTS, Fault
from bench.wild.program import Program, assemble
from bench.wild.recipe import Recipe

PREFIX = "mutant:"
"""Begins the kind of a case that is a mutant."""

Edit: TypeAlias = tuple[ast.AST, str]
"""A node and the text that replaces it."""

_OPTIMIZERS = ("SGD", "AdamW", "LBFGS")


@dataclass(frozen=True)
class Mutant:
    """One mutation.

    Attributes:
        edits: Finds what is to be replaced in a program; nothing where the program has no such call.
        uses: Methods whose lines are right, too, because they use what the mutation left; see Fault.place_slots.
    """

    edits: Callable[[ast.Module], Iterator[Edit]]
    fault: Fault
    uses: tuple[str, ...] = ()


def _calls(tree: ast.Module, *names: str) -> Iterator[ast.Call]:
    """Calls of methods with these names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names:
            yield node


def _statements(tree: ast.Module, *names: str) -> Iterator[ast.Expr]:
    """Statements that are nothing but such a call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            if isinstance(function, ast.Attribute) and function.attr in names:
                yield node


def drop_zero_grad(tree: ast.Module) -> Iterator[Edit]:
    return ((statement, "pass") for statement in _statements(tree, "zero_grad"))


def clip_first(tree: ast.Module) -> Iterator[Edit]:
    """Exchanges unscale_() and the clip."""
    unscale = list(_statements(tree, "unscale_"))
    clip = list(_statements(tree, "clip_grad_norm_", "clip_grad_value_"))
    if len(unscale) == len(clip) == 1:
        yield unscale[0], ast.unparse(clip[0])
        yield clip[0], ast.unparse(unscale[0])


def wrong_device(tree: ast.Module) -> Iterator[Edit]:
    return ((call.args[0], "'cuda'") for call in _calls(tree, "autocast") if call.args)


def train_a_copy(tree: ast.Module) -> Iterator[Edit]:
    for call in _calls(tree, *_OPTIMIZERS):
        for argument in call.args:
            if isinstance(argument, ast.Call) and ast.unparse(argument).endswith(".parameters()"):
                assert isinstance(argument.func, ast.Attribute)
                yield argument, f"copy.deepcopy({ast.unparse(argument.func.value)}).parameters()"


def _unloaded(part: str) -> Callable[[ast.Module], Iterator[Edit]]:
    def edits(tree: ast.Module) -> Iterator[Edit]:
        for statement in _statements(tree, "load_state_dict"):
            if f"'{part}'" in ast.unparse(statement):
                yield statement, "pass"

    return edits


def no_eps(tree: ast.Module) -> Iterator[Edit]:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "eps":
            yield node.value, "0.0"


def past_the_scaler(tree: ast.Module) -> Iterator[Edit]:
    """Steps the optimizer itself, without unscaling."""
    for statement in _statements(tree, "step"):
        call = statement.value
        assert isinstance(call, ast.Call)
        if len(call.args) == 1 and "scale" in ast.unparse(call.func).lower():
            yield statement, f"{ast.unparse(call.args[0])}.step()"
    for statement in _statements(tree, "unscale_"):
        yield statement, "pass"


def unscaled_loss(tree: ast.Module) -> Iterator[Edit]:
    for call in _calls(tree, "backward"):
        assert isinstance(call.func, ast.Attribute)
        inner = call.func.value
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr == "scale":
            yield inner, ast.unparse(inner.args[0])


MUTANTS = {
    "drop-zero-grad": Mutant(drop_zero_grad, FAULTS["gradients-not-reset"], ("backward", "unscale_", "step")),
    "clip-first": Mutant(clip_first, FAULTS["clip-before-unscale"]),
    "wrong-device": Mutant(wrong_device, FAULTS["not-as-asked"]),
    "train-a-copy": Mutant(train_a_copy, FAULTS["no-gradients"]),
    "optimizer-not-loaded": Mutant(_unloaded("optimizer"), FAULTS["resume-without-optimizer"]),
    "scaler-not-loaded": Mutant(_unloaded("scaler"), FAULTS["resume-without-scaler"]),
    "no-eps": Mutant(no_eps, FAULTS["eps-underflow"]),
    "past-the-scaler": Mutant(past_the_scaler, FAULTS["gradients-not-unscaled"]),
    "unscaled-loss": Mutant(unscaled_loss, FAULTS["loss-not-scaled"], ("unscale_", "step")),
}


def mutants_of(recipe: Recipe) -> list[str]:
    """The mutants that the repaired program of a recipe can have."""
    program = assemble(recipe, "twin")
    assert program is not None
    tree = ast.parse(program.recorded)
    return [name for name, mutant in MUTANTS.items() if any(True for _ in mutant.edits(tree))]


def mutate(recipe: Recipe, name: str) -> Program:
    """The repaired program of a recipe with one mutation, at all places that have it."""
    program = assemble(recipe, "twin")
    assert program is not None
    edits, uses = MUTANTS[name].edits, MUTANTS[name].uses
    text = _replaced(program.text, list(edits(ast.parse(program.text))))
    places = [node for node, _ in edits(ast.parse(program.text))] + list(_calls(ast.parse(text), *uses))
    return replace(
        program,
        text=text,
        recorded=_replaced(program.recorded, list(edits(ast.parse(program.recorded)))),
        place_lines=frozenset(node.lineno for node in places),  # type: ignore[attr-defined]
        onset=0,
    )


def _replaced(source: str, edits: Sequence[Edit]) -> str:
    """The source with all edits, from the last to the first. Each node is on one line."""
    lines = source.splitlines(keepends=True)
    for node, text in sorted(edits, key=_position, reverse=True):
        number, column = _position((node, text))
        end: int = node.end_col_offset  # type: ignore[attr-defined]
        lines[number] = lines[number][:column] + text + lines[number][end:]
    return "".join(lines)


def _position(edit: Edit) -> tuple[int, int]:
    node = edit[0]
    return node.lineno - 1, node.col_offset  # type: ignore[attr-defined]
