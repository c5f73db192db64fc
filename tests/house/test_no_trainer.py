"""Nothing that ships knows the reference trainer: what is found in its runs is found because it shows, and in any run.

The names are taken from the trainer as it is: of its networks, built for real, and of its files.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from ammeter import verdicts
from tests.house import tree

TRAINER = tree.ROOT / "trainer"
KNOWN_TO_ALL = (torch, torch.nn, torch.nn.functional, torch.amp, torch.optim, torch.Tensor, torch.nn.Module)


@cache
def networks() -> dict[str, torch.nn.Module]:
    """Every architecture that the trainer offers, at its smallest and as it comes."""
    sys.path.insert(0, str(TRAINER))  # where `python trainer/train.py` finds its own files
    try:
        import build
        import options
    finally:
        sys.path.remove(str(TRAINER))
    archs = next(action for action in options.build_parser()._actions if action.dest == "arch").choices
    asked = [(arch, size) for arch in archs or () for size in ([], ["--tiny"])]
    return {
        " ".join((arch, *size)): build.build_model(options.read_options(["--arch", arch, *size]))
        for arch, size in asked
    }


def sources() -> list[Path]:
    return [path for path in tree.tracked() if TRAINER in path.parents and path.suffix == ".py"]


def names_in_its_files() -> Iterator[str]:
    """Classes, functions, and the words of its command line."""
    for path in sources():
        yield from (node.name for node in tree.syntax(path).body if isinstance(node, ast.ClassDef | ast.FunctionDef))
        for text in strings(path):
            yield from (word.replace("-", "_") for word in re.findall(r"^--([a-z-]+)$", text))


def is_special(name: str) -> bool:
    """Not a plain word of the field, such as 'batch', nor one of torch's: one that says that its author had seen it."""
    if any(hasattr(place, name) for place in KNOWN_TO_ALL) or name in inspect.signature(torch.optim.AdamW).parameters:
        return False
    compound = "_" in name.strip("_") or bool(re.search(r"[a-z][A-Z]", name))
    return compound or len(name) <= 3


def special_names() -> set[str]:
    faults = {verdict.id.replace("-", "_") for verdict in verdicts.ALL}  # which bear the names of verdicts on purpose
    parts = {part for network in networks().values() for path, _ in network.named_modules() for part in path.split(".")}
    return {name for name in {*names_in_its_files(), *parts} - faults if name.isidentifier() and is_special(name)}


def special_paths() -> set[str]:
    """Of modules and weights, two names and more, in whatever block they lie: 'mlp.fc', 'blocks.1'."""
    found = set()
    for network in networks().values():
        for path, _ in (*network.named_modules(), *network.named_parameters()):
            parts = path.split(".")
            found |= {".".join(parts[at : at + 2]) for at in range(len(parts) - 1)}
    return {path for path in found if path.rpartition(".")[2] not in ("weight", "bias")}


@cache
def special_numbers() -> set[int]:
    """How many weights the networks and their tensors have, as far as it is no number that anybody might take."""
    networks_ = networks().values()
    counts = {parameter.numel() for network in networks_ for parameter in network.parameters()}
    counts |= {sum(parameter.numel() for parameter in network.parameters()) for network in networks_}
    return {count for count in counts if not is_round(count)}


def is_round(number: int) -> bool:
    """A power of two, one of its multiples by three, or two digits and zeros."""
    return number < 100 or number & (number - 1) == 0 or len(str(number).rstrip("0")) <= 2


def shipped() -> list[Path]:
    kinds = (".py", ".js", ".html")
    folders = (tree.AGENT, tree.SERVER)
    return [
        path
        for path in tree.tracked()
        if path.suffix in kinds and any(folder in path.parents for folder in folders) and "vendor" not in path.parts
    ]


def strings(path: Path) -> Iterator[str]:
    """What a file says, but not what it says of itself."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.value)
        for owner in ast.walk(tree.syntax(path))
        for node in (getattr(owner, "body", ()) if isinstance(owner, documented) else ())
        if isinstance(node, ast.Expr)
    }
    for node in ast.walk(tree.syntax(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


@cache
def text_of(path: Path) -> str:
    """What runs of a file: identifiers and strings of Python, all of a script or a page."""
    if path.suffix != ".py":
        return path.read_text(encoding="utf-8")
    names = []
    for node in ast.walk(tree.syntax(path)):
        names += [
            getattr(node, name) for name in ("id", "attr", "arg", "name") if isinstance(getattr(node, name, 0), str)
        ]
    return "\n".join([*names, *strings(path)])


def occurrences(words: Iterable[str]) -> list[str]:
    pattern = re.compile(r"(?<![\w.])(?:[\w]+\.)*(" + "|".join(map(re.escape, sorted(words))) + r")(?![\w])")
    return [
        f"{path.relative_to(tree.ROOT)}: {hit}"
        for path in shipped()
        for hit in sorted(set(pattern.findall(text_of(path))))
    ]


def test_the_names_are_those_of_the_trainer() -> None:
    assert {"gpt", "gpt --tiny"} <= set(networks())
    assert {"GPT", "FeedForward", "DistanceGate", "qkv", "mlp", "warm_up_then_cosine", "eval_every"} <= special_names()
    assert {"attention.qkv", "mlp.fc", "blocks.1"} <= special_paths()
    assert not {"batch", "steps", "state_dict", "lr", "scale_collapse"} & special_names()


def test_no_name_of_the_trainer_is_known_to_what_ships() -> None:
    assert [] == occurrences(special_names())


def test_no_module_of_the_trainer_is_known_to_what_ships() -> None:
    assert [] == occurrences(special_paths())


@pytest.mark.parametrize("path", shipped(), ids=lambda path: str(path.relative_to(tree.ROOT)))
def test_no_size_of_the_trainers_networks_is_known_to_what_ships(path: Path) -> None:
    if path.suffix == ".py":
        nodes = (node for node in ast.walk(tree.syntax(path)) if isinstance(node, ast.Constant))
        known = {node.value for node in nodes if isinstance(node.value, int)}
    else:
        known = set(map(int, re.findall(r"\b\d+\b", path.read_text(encoding="utf-8"))))
    assert set() == known & special_numbers()
