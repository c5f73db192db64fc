from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from deploy import lock
from deploy.compose import ROOT

FILES = sorted((ROOT / "deploy").glob("*.Dockerfile"))
IGNORED = (ROOT / ".dockerignore").read_text().splitlines()


def instructions(file: Path) -> list[tuple[str, str]]:
    """(word, rest) of each, with lines that go on joined."""
    text = re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, " ".join(rest.split())) for word, rest in re.findall(r"^([A-Z]+)\s+(.+)$", text, re.MULTILINE)]


def last_stage(file: Path) -> list[tuple[str, str]]:
    every = instructions(file)
    begins = max(place for place, (word, _) in enumerate(every) if word == "FROM")
    return every[begins:]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
class TestEveryImage:
    def test_comes_from_one_slim_version_of_python_in_two_stages(self, file: Path) -> None:
        bases = [rest.split()[0] for word, rest in instructions(file) if word == "FROM"]
        assert 2 == len(bases)
        assert re.fullmatch(r"python:3\.11\.\d+-slim-[a-z]+", bases[0])
        assert 1 == len({*bases})

    def test_runs_as_a_user_that_is_not_root(self, file: Path) -> None:
        (user,) = (rest for word, rest in last_stage(file) if word == "USER")
        assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user)

    def test_copies_what_is_there_and_what_the_context_holds(self, file: Path) -> None:
        copied = [rest.split()[0] for word, rest in instructions(file) if word == "COPY" and "--from" not in rest]
        assert copied
        assert [] == [name for name in copied if not (ROOT / name).exists() or f"!{name}" not in IGNORED]

    def test_copies_what_links_lead_to_and_to_the_same_place(self, file: Path) -> None:
        copied = [rest.split() for word, rest in instructions(file) if word == "COPY" and "--from" not in rest]
        assert [] == [source for source, target in copied if target != f"/source/{source}"]
        folders = [ROOT / source for source, _ in copied]
        links = [link for folder in folders for link in folder.rglob("*") if link.is_symlink()]
        assert [] == [link for link in links if not any(link.resolve().is_relative_to(folder) for folder in folders)]

    def test_builds_in_the_first_stage_only(self, file: Path) -> None:
        runs = [rest for word, rest in last_stage(file) if word == "RUN"]
        assert [] == [run for run in runs if re.search(r"\b(pip|apt-get|gcc|make)\b", run)]

    def test_says_whether_it_is_healthy(self, file: Path) -> None:
        (check,) = (rest for word, rest in last_stage(file) if word == "HEALTHCHECK")
        words = json.loads(check[check.index("[") :])
        assert ["python", "-c"] == words[:2]
        compile(words[2], "HEALTHCHECK", "exec")

    def test_runs_a_command_of_a_distribution_that_it_installs(self, file: Path) -> None:
        (command,) = (json.loads(rest) for word, rest in last_stage(file) if word == "CMD")
        (install,) = (rest for word, rest in instructions(file) if word == "RUN" and "pip wheel" in rest)
        parts = re.findall(r"/source/(agent|server)\b", install)
        projects = [tomllib.loads((ROOT / part / "pyproject.toml").read_text())["project"] for part in parts]
        assert command[0] in {name for project in projects for name in project["scripts"]}

    def test_takes_from_an_index_only_what_its_lock_files_name_with_hashes(self, file: Path) -> None:
        pip = re.compile(r"\bpip (?:install|wheel|download)\b(?:(?!&&).)*")
        calls = [call for word, rest in instructions(file) if word == "RUN" for call in pip.findall(rest)]
        locked = [call for call in calls if "--require-hashes" in call]
        assert [f"/source/deploy/locks/{name}.txt" for name in ("build", file.stem)] == [
            call.split()[-1] for call in locked
        ]
        assert [] == [
            call for call in calls if call not in locked and not {"--no-index", "--no-deps"} <= {*call.split()}
        ]


@pytest.mark.parametrize("name", lock.locks())
class TestEveryLockFile:
    def test_has_the_versions_of_the_constraints_and_hashes_for_each(self, name: str) -> None:
        constraints = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
        versions = {plain(one): version for one, version in constraints.items()}
        locked = entries(name)
        assert {} == {
            one: pinned for one, (pinned, _) in locked.items() if one != "tzdata" and versions.get(one) != pinned
        }
        assert [] == [one for one, (_, hashes) in locked.items() if not hashes]

    def test_has_every_requirement_of_what_it_is_for(self, name: str) -> None:
        wanted = {plain(re.split(r"[\s<>=!~;\[]", one)[0]) for one in lock.locks()[name]}
        assert set() == wanted - set(entries(name)), "run: make lock"


def entries(name: str) -> dict[str, tuple[str, list[str]]]:
    """Distribution -> its version and the hashes of its files."""
    text = (lock.LOCKS / f"{name}.txt").read_text().replace("\\\n", " ")
    found = re.findall(r"^([\w.-]+)==([^\s;]+)(.*)$", text, re.MULTILINE)
    return {plain(one): (version, re.findall(r"--hash=sha256:[0-9a-f]{64}", rest)) for one, version, rest in found}


def plain(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_no_image_gets_torch_or_what_lies_about() -> None:
    for part in ("agent", "server"):
        named = tomllib.loads((ROOT / part / "pyproject.toml").read_text())["project"]["dependencies"]
        assert [] == [name for name in named if name.startswith("torch")]
    assert "*" == next(line for line in IGNORED if line and not line.startswith("#"))
