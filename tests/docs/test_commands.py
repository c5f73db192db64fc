"""Commands in the documents: their syntax, the options that they use, and the files, services and routes they name."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

import ammeter_server.__main__ as server
from ammeter.__main__ import main
from ammeter_server.app import create_app
from ammeter_server.config.settings import Settings
from tests.docs.blocks import Block, all_blocks, commands
from tests.house import tree
from tests.house.test_document_links import targets_of_make
from tests.house.test_documents import SETTING, first_cells

OURS = {"ammeter", "ammeter-server", "make", "docker", "kubectl", "curl"}
"""Programs whose words are compared with what they find here."""

OTHERS = {
    *("amtool", "promtool", "pg_dump", "createdb", "createuser", "pg_restore", "openssl"),
    *("accelerate", "deepspeed", "torchrun", "pip", "python", "python3", ".venv/bin/python", ".venv/bin/pytest"),
    *("helm", "sbatch", "scontrol", "head"),
    *("cd", "chmod", "cp", "done", "echo", "export", "git", "kill", "mkdir", "sed", "sleep"),
}
"""Programs of others, of which only the syntax of the command is checked, where no test runs it."""

WITH_ACTIONS = ("baseline",)
"""Commands of `ammeter` whose first word is that of an action, which has options of its own."""

BLOCKS = all_blocks("sh")
CONSOLE = all_blocks("console")


def asked(program: str) -> list[tuple[str, list[str]]]:
    """Returns (block, arguments) of each command of a program."""
    return [
        (str(block), words[1:])
        for block in BLOCKS
        for words in commands(block.text)
        if words[0].removeprefix(".venv/bin/") == program
    ]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_the_shell_can_read_every_block(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, timeout=30)
    assert (0, "") == (done.returncode, done.stderr)


def test_every_program_of_a_command_is_known() -> None:
    named = {(str(block), words[0]) for block in BLOCKS for words in commands(block.text)}
    assert {"ammeter", "make", "docker"} <= {program for _, program in named}
    assert [] == sorted(
        (place, program)
        for place, program in named
        if program not in OTHERS and program.removeprefix(".venv/bin/") not in OURS
    )


@cache
def options(*command: str) -> set[str]:
    """The options that the help of a command of `ammeter` lists."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        main([*command, "--help"])
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", shown.getvalue()))


@pytest.mark.parametrize(("place", "words"), asked("ammeter"), ids=str)
def test_every_option_of_ammeter_exists(place: str, words: list[str]) -> None:
    command, *rest = words
    own = rest[: rest.index("--")] if "--" in rest else rest
    known = options(command, *(rest[:1] if command in WITH_ACTIONS else ()))
    assert [] == [word for word in own if word.startswith("--") and word.partition("=")[0] not in known]
    assert ("--" in rest) == (command in ("run", "canary")), place


@pytest.mark.parametrize(("place", "words"), asked("ammeter-server"), ids=str)
def test_every_command_of_the_server_is_one(place: str, words: list[str]) -> None:
    assert server._parser().parse_args(words).command, place


def test_every_target_of_make_exists() -> None:
    assert [] == [(place, words) for place, words in asked("make") if words[0] not in targets_of_make()]


def test_every_service_of_docker_compose_exists() -> None:
    known = set(yaml.safe_load((tree.ROOT / "docker-compose.yml").read_text())["services"])
    named = [(place, _service(words)) for place, words in asked("docker")]
    assert {"collector", "database", "pages"} <= {service for _, service in named}
    assert [] == [(place, service) for place, service in named if service and service not in known]


def _service(words: list[str]) -> str | None:
    compose, command, *rest = words
    assert "compose" == compose
    assert command in {"up", "exec", "logs", "stop"}
    return next((word for word in rest if not word.startswith("-")), None)


def test_every_file_of_kubernetes_that_a_command_names_exists() -> None:
    named = [word for _, words in asked("kubectl") for word in words if "/" in word and "=" not in word]
    named += [
        word for block in BLOCKS for words in commands(block.text) for word in words if re.match(r"alerts/", word)
    ]
    there = {f"deploy/{path.stem}" for path in (tree.ROOT / "deploy" / "kubernetes").glob("*")} | {"deploy/ammeter"}
    assert named
    assert [] == [name for name in named if name not in there and not (tree.ROOT / name).exists()]


def test_every_address_that_is_asked_for_is_a_route(tmp_path: Path) -> None:
    app = create_app(Settings(database_url=f"sqlite:///{tmp_path / 'collector.db'}"))
    app.state.context.store.close()
    routes = [re.compile(re.sub(r"\{\w+\}", "[^/?]+", path) + r"(\?.*)?") for path in app.openapi()["paths"]]
    texts = [block.text for block in (*BLOCKS, *CONSOLE, *all_blocks("http"))]
    paths = [path for text in texts for path in re.findall(r"(?:8480|POST )(/api/[^\s'\"]+)", text)]
    assert 6 <= len(paths)
    assert [] == [path for path in paths if not any(route.fullmatch(path) for route in routes)]


def test_every_example_of_a_console_is_one_request_and_its_answer() -> None:
    assert CONSOLE
    for block in CONSOLE:
        request, *_ = block.text.splitlines()
        assert request.startswith("$ curl -s"), str(block)


def test_every_setting_in_a_block_is_described() -> None:
    described = set(first_cells((tree.ROOT / "docs" / "settings.md").read_text()))
    named = {(str(block), name) for block in all_blocks() for name in SETTING.findall(block.text)}
    assert {"AMMETER_URL", "AMMETER_SERVER_KEEP_BYTES"} <= {name for _, name in named}
    assert [] == sorted(entry for entry in named if entry[1] not in described)
