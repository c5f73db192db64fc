"""The commands in docs/schedulers.md, and that of the chart in docs/operate.md, name files and words that exist."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
import yaml

from ammeter_server.__main__ import main as server
from deploy.compose import ROOT

DOCS = ROOT / "docs"
COMMANDS = [
    command
    for page, programs in (("schedulers.md", "sbatch|kubectl"), ("operate.md", "helm"))
    for command in re.findall(
        rf"^(?:{programs}) .*", (DOCS / page).read_text().replace("\\\n", " "), flags=re.MULTILINE
    )
]


def test_every_command_is_found() -> None:
    assert ["sbatch", "sbatch", "kubectl", "kubectl", "kubectl", "kubectl", "helm"] == [
        command.split()[0] for command in COMMANDS
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_shell_accepts_it_and_its_files_exist(command: str) -> None:
    subprocess.run(["bash", "-n", "-c", command], check=True, capture_output=True)
    named = [word for word in shlex.split(command) if re.match(r"(examples|deploy)/", word)]
    assert all((ROOT / word).exists() for word in named if word != "deploy/ammeter")
    assert named or "kubectl" in command


def test_the_script_of_several_nodes_is_one_that_a_shell_accepts() -> None:
    (command,) = (command for command in COMMANDS if "--nodes=2" in command)
    script = shlex.split(command)[-1]
    assert script.startswith("torchrun --nnodes=$SLURM_NNODES")
    subprocess.run(["bash", "-n", "-c", script], check=True, capture_output=True)


def test_the_token_is_made_by_a_command_of_the_collector(capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = (command for command in COMMANDS if "token create" in command)
    found = re.search(r"ammeter-server (token create) (\w+) (--scopes) (\w+)\)", command)
    assert found is not None
    with pytest.raises(SystemExit) as ended:
        server([*found[1].split(), "--help"])
    assert 0 == ended.value.code
    assert found[3] in capsys.readouterr().out


def test_the_chart_has_every_value_that_is_set() -> None:
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "ammeter" / "values.yaml").read_text())
    (command,) = (command for command in COMMANDS if command.startswith("helm"))
    words = shlex.split(command)
    given = [words[at + 1].partition("=")[0] for at, word in enumerate(words) if word == "--set"]
    assert ["publicUrl", "runbookUrl", "image.repository"] == given
    for name in given:
        found = values
        for part in name.split("."):
            found = found[part]
        assert isinstance(found, str)


def test_the_page_names_every_example() -> None:
    page = (DOCS / "schedulers.md").read_text()
    for folder in ("slurm", "kubernetes"):
        for path in (ROOT / "examples" / folder).iterdir():
            assert f"(../examples/{folder}/{path.name})" in page
