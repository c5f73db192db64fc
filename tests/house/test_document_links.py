"""Commands and links in the documents lead to something."""

from __future__ import annotations

import re
from pathlib import Path

from tests.house import tree
from tests.house.test_documents import constants


def markdown() -> list[Path]:
    return [path for path in tree.tracked() if path.suffix == ".md"]


def targets_of_make() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (tree.ROOT / "Makefile").read_text(), re.MULTILINE))


def test_every_make_command_in_a_document_exists() -> None:
    pattern = re.compile(r"(?:`|^ *)make ([a-z]+)", re.MULTILINE)
    asked = {(path.name, target) for path in markdown() for target in pattern.findall(path.read_text())}
    assert {"test", "check", "demo"} <= {target for _, target in asked}
    assert [] == [command for command in asked if command[1] not in targets_of_make()]


def test_every_program_that_make_runs_is_there() -> None:
    makefile = (tree.ROOT / "Makefile").read_text()
    named = re.findall(r"\b((?:bench|tests|trainer)/[\w/]+\.(?:py|sh))", makefile)
    modules = [tree.ROOT / name.replace(".", "/") for name in re.findall(r"python -m (bench[\w.]*)", makefile)]
    assert named
    assert modules
    assert [] == [name for name in named if not (tree.ROOT / name).is_file()]
    assert [] == [
        path for path in modules if not (path / "__main__.py").is_file() and not path.with_suffix(".py").is_file()
    ]


def commands(program: Path) -> set[str]:
    """The words that a command line knows, as its parser or list has them."""
    return {constant for constant in constants(program) if re.fullmatch(r"[a-z]+", constant)}


def test_every_command_in_a_document_exists() -> None:
    known = {"ammeter": commands(tree.AGENT / "__main__.py"), "ammeter-server": commands(tree.SERVER / "__main__.py")}
    pattern = re.compile(r"(?:`|^ {4}|^\$ |^)(?:\.venv/bin/)?(ammeter|ammeter-server) ([a-z]+)", re.MULTILINE)
    asked = {(path.name, *match) for path in markdown() for match in pattern.findall(code_of(path.read_text()))}
    assert {"report", "serve"} <= {word for _, _, word in asked}
    assert [] == [(name, program, word) for name, program, word in asked if word not in known[program]]


def code_of(text: str) -> str:
    """The code of a document: fenced blocks, and each piece between backticks on a line of its own."""
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    rest = re.sub(r"^```\w*\n.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return "\n".join([*fenced, *re.findall(r"`([^`\n]+)`", rest)])


def test_relative_links_lead_to_a_file() -> None:
    broken = []
    for path in markdown():
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
            file, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", target) or file.startswith("/"):
                continue
            there = (path.parent / file) if file else path
            if not there.exists() or (anchor and anchor not in anchors(there)):
                broken.append(f"{path.relative_to(tree.ROOT)}: {target}")
    assert [] == broken


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
