"""`ammeter runbook` prints what to do; a wheel that is installed alone has every runbook and opens it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ammeter import verdicts
from ammeter.__main__ import main
from tests.house import tree

Output = pytest.CaptureFixture[str]


@pytest.mark.parametrize("verdict", [verdict.id for verdict in verdicts.ALL])
def test_every_verdict_has_a_runbook_that_is_printed(verdict: str, capsys: Output) -> None:
    assert 0 == main(["runbook", verdict])
    out = capsys.readouterr().out
    assert out.startswith("# ")
    assert "(/runbooks/" not in out


def test_a_link_to_another_runbook_is_the_command_that_prints_it(capsys: Output) -> None:
    assert 0 == main(["runbook", "scale-collapse"])
    assert "see nonfinite-loss (`ammeter runbook nonfinite-loss`)" in " ".join(capsys.readouterr().out.split())


def test_without_a_name_the_names_are_listed(capsys: Output) -> None:
    assert 0 == main(["runbook"])
    assert {verdict.id for verdict in verdicts.ALL} < set(capsys.readouterr().out.split())


def test_a_runbook_and_the_names_are_printed_as_json(capsys: Output) -> None:
    assert 0 == main(["runbook", "--json"])
    assert "scale-collapse" in json.loads(capsys.readouterr().out)["items"]
    assert 0 == main(["runbook", "scale-collapse", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert "scale-collapse" == printed["name"]
    assert printed["markdown"].startswith(f"# {printed['title']}\n")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("scale-colapse", "'scale-colapse' is not a runbook; did you mean scale-collapse"),
        ("../../etc/passwd", "'../../etc/passwd' is not a runbook; "),
        ("zzz", "use one of activation-casts, activation-overflow"),
    ],
)
def test_an_unknown_name_is_refused_with_those_it_may_mean(name: str, said: str, capsys: Output) -> None:
    assert 2 == main(["runbook", name])
    assert said in capsys.readouterr().err


def test_a_wheel_that_is_installed_alone_opens_every_runbook(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys; from hatchling.builders.wheel import WheelBuilder;"
        "print(*WheelBuilder(sys.argv[1]).build(directory=sys.argv[2], versions=['standard']))"
    )
    for name in ("agent", "alerts/runbooks"):  # a copy: the build hook writes beside its source
        shutil.copytree(tree.ROOT / name, tmp_path / "source" / name, symlinks=True)
    words = [sys.executable, "-c", script, str(tmp_path / "source" / "agent"), str(tmp_path)]
    built = subprocess.run(words, capture_output=True, text=True, timeout=280, env={**os.environ, "CC": "false"})
    assert 0 == built.returncode, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    assert not (installed / "ammeter" / "runbooks").is_symlink()
    for name in ("_ammeter_startup.py", "ammeter_startup.pth"):
        assert (tree.ROOT / "agent" / name).read_text() == (installed / name).read_text()
    for verdict in ("scale-collapse", "checkpoint-exposed"):
        program = "import sys; sys.path.insert(0, sys.argv.pop(1)); from ammeter.__main__ import main; sys.exit(main())"
        words = [sys.executable, "-I", "-c", program, str(installed), "runbook", verdict]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        expected = (tree.ROOT / "alerts" / "runbooks" / f"{verdict}.md").read_text().splitlines()[0]
        assert (0, expected) == (done.returncode, done.stdout.splitlines()[0]), done.stderr
