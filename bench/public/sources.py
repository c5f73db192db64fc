"""Brings a commit of a public repository, and makes the program small."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

from bench.public.program import Program

CLONE_SECONDS = 600.0


class Missing(Exception):
    """Why a program cannot run here."""


def prepared(program: Program, sources: Path, folder: Path) -> Path:
    """Writes the small program with its data into a folder.

    Args:
        sources: Clones by owner+name, each with or without a work tree. One that is missing is fetched.

    Returns:
        The script.

    Raises:
        Missing: something cannot be fetched, or the program is another one by now.
    """
    archive = _git(_clone(program, sources), "archive", program.commit, "--", *program.paths)
    with tarfile.open(fileobj=BytesIO(archive)) as packed:
        packed.extractall(folder, filter="data")
    script = _script(program, folder)
    for path, text, smaller in program.sizes:
        _replace(folder / path, text, smaller)
    program.data(folder)
    for path in program.prepare:
        done = subprocess.run(
            [sys.executable, Path(path).name], cwd=(folder / path).parent, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Missing(f"{path}: {_last_line(done.stderr)}")
    return script


def _clone(program: Program, sources: Path) -> Path:
    name = program.repository.replace("/", "+")
    for found in (sources / name / "repo", sources / name):
        if (found / "HEAD").exists() or (found / ".git").exists():
            return found
    target = sources / name
    command = ["git", "clone", "-q", "--filter=blob:none", "--no-checkout", _address(program), str(target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CLONE_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise Missing(f"fetching {program.repository} took over {CLONE_SECONDS:.0f} s") from error
    if done.returncode:
        raise Missing(f"{program.repository} cannot be fetched: {_last_line(done.stderr)}")
    return target


def _address(program: Program) -> str:
    return f"https://github.com/{program.repository}"


def _git(clone: Path, *arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", str(clone), *arguments], capture_output=True, check=False)
    if done.returncode:
        raise Missing(f"git {arguments[0]} in {clone}: {_last_line(done.stderr.decode(errors='replace'))}")
    return done.stdout


def _script(program: Program, folder: Path) -> Path:
    """The script; one that is a block of a document is written beside it."""
    path, _, marker = program.script.partition("#")
    if not marker:
        return folder / path
    blocks = re.findall(r"```python\n(.*?)```", (folder / path).read_text(), re.DOTALL)
    block = next((block for block in blocks if marker in block), None)
    if block is None:
        raise Missing(f"{path} has no block with {marker!r}")
    script = (folder / path).with_name("documented.py")
    script.write_text(block)
    return script


def _replace(path: Path, text: str, smaller: str) -> None:
    found = path.read_text()
    if text not in found:
        raise Missing(f"{path.name} does not contain {text!r}")
    path.write_text(found.replace(text, smaller, 1))


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
