"""Files below .github, and the hooks before a commit: valid, and about commands and files that exist."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from tests.house.tree import ROOT

GITHUB = ROOT / ".github"
SCHEMAS = Path(__file__).parent / "schemas"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
MAKEFILE = (ROOT / "Makefile").read_text()


def load(path: Path) -> Any:
    """YAML as GitHub reads it: `on` is a word, not true."""
    content = yaml.safe_load(path.read_text())
    return {("on" if key is True else key): value for key, value in content.items()}


def faults(schema: str, content: Any) -> list[str]:
    validator = jsonschema_rs.validator_for(json.loads((SCHEMAS / f"{schema}.json").read_text()))
    return [error.message for error in validator.iter_errors(content)]


def steps(workflow: Any) -> Iterator[Any]:
    for job in workflow["jobs"].values():
        yield from job.get("steps", ())


def commands() -> Iterator[tuple[str, str]]:
    """(file, script) of every step that runs one."""
    for path in WORKFLOWS:
        yield from ((path.name, step["run"]) for step in steps(load(path)) if "run" in step)


def test_the_four_workflows_are_there() -> None:
    assert ["check", "release", "test", "wheels"] == [path.stem for path in WORKFLOWS]
    assert ["bug", "feature", "wrong-verdict"] == [path.stem for path in FORMS]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_follows_the_schema_of_github(path: Path) -> None:
    assert [] == faults("workflow", load(path))


def test_the_schema_refuses_a_misspelt_key() -> None:
    workflow = load(GITHUB / "workflows" / "check.yml")
    workflow["jobs"]["check"]["step"] = workflow["jobs"]["check"].pop("steps")
    assert faults("workflow", workflow)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_an_issue_form_follows_the_schema_of_github(path: Path) -> None:
    assert [] == faults("issue-form", load(path))
    assert [] == faults("issue-config", load(path.with_name("config.yml")))


def test_every_make_target_in_a_workflow_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    named = [
        (name, word)
        for name, script in commands()
        for words in re.findall(r"^\s*make (.*)$", script, re.MULTILINE)
        for word in words.split()
        if "=" not in word
    ]
    assert ("check.yml", "check") in named
    assert ("test.yml", "test") in named
    assert [] == [(name, word) for name, word in named if word not in targets]


def test_every_script_of_a_workflow_is_sound_shell() -> None:
    for name, script in commands():
        shell = re.sub(r"\$\{\{.*?\}\}", "expression", script)
        done = subprocess.run(["bash", "-n"], input=shell, capture_output=True, text=True, timeout=10)
        assert (0, "") == (done.returncode, done.stderr), name


def test_no_expression_of_github_is_put_into_a_script() -> None:
    assert [] == [name for name, script in commands() if "${{" in script]


def test_workflows_may_read_only_and_the_release_alone_gets_an_identity() -> None:
    for path in WORKFLOWS:
        workflow = load(path)
        assert {"contents": "read"} == workflow["permissions"]
        granted = [job["permissions"] for job in workflow["jobs"].values() if "permissions" in job]
        assert granted == ([{"id-token": "write"}] if path.stem == "release" else [])


def test_every_action_names_a_version() -> None:
    used = [step["uses"] for path in WORKFLOWS for step in steps(load(path)) if "uses" in step]
    assert used
    assert [] == [action for action in used if not re.fullmatch(r"[\w.-]+/[\w.-]+@(v\d[\w.]*|release/v\d+)", action)]


def test_the_tested_pythons_are_those_that_both_distributions_name() -> None:
    matrix = load(GITHUB / "workflows" / "test.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    for name in ("agent", "server"):
        project = tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"]
        named = re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(project["classifiers"]))
        assert matrix == named
        assert f">={matrix[0]}" == project["requires-python"]


def test_the_lowest_torch_that_is_tested_is_the_one_that_is_promised() -> None:
    (tested,) = re.findall(r"torch==([\d.]+)\.\*", (GITHUB / "workflows" / "test.yml").read_text())
    assert f"PyTorch {tested} or newer" in (ROOT / "README.md").read_text()


def test_wheels_are_built_for_both_processors() -> None:
    include = load(GITHUB / "workflows" / "wheels.yml")["jobs"]["agent"]["strategy"]["matrix"]["include"]
    assert ["x86_64", "aarch64"] == [entry["arch"] for entry in include]
    settings = tomllib.loads((ROOT / "agent" / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    assert settings["build"] == "cp311-manylinux_*"


def test_hooks_before_a_commit_are_what_make_check_runs() -> None:
    check = re.split(r"^check:.*$", MAKEFILE, flags=re.MULTILINE)[1].split("\n\n")[0]
    (repository,) = load(ROOT / ".pre-commit-config.yaml")["repos"]
    hooked = [hook["entry"].removeprefix(".venv/bin/").split(" --")[0] for hook in repository["hooks"]]
    made = [re.sub(r" (--check )?\.$", "", words) for words in re.findall(r"\$\(BIN\)/(.*)$", check, re.MULTILINE)]
    assert sorted(made) == sorted(hooked)
