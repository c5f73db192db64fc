"""A wrong call names its remedy; the command keeps its input, arguments and sitecustomize."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.launching import AMMETER


def call(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*AMMETER, *words], capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )


@pytest.mark.parametrize(
    ("words", "environment", "code", "said"),
    [
        ((), {}, 2, "the command is missing; use: ammeter run -- python train.py"),
        (("--", "no-such-program"), {}, 127, "'no-such-program' cannot be started: No such file or directory"),
        (
            ("--", "/etc/passwd"),
            {},
            126,
            "'/etc/passwd' cannot be started: Permission denied; try: chmod +x",
        ),
        (("--url", "ftp://x", "--", "true"), {}, 2, "url is 'ftp://x'; use http:// or https://"),
        (("--", "true"), {"AMMETER_BUDGET": "lots"}, 2, "AMMETER_BUDGET is 'lots'"),
        (("--budget", "7", "--", "true"), {}, 2, "budget is 7.0"),
    ],
)
def test_a_wrong_call_names_the_remedy(
    words: tuple[str, ...], environment: dict[str, str], code: int, said: str
) -> None:
    done = call(*words, **environment)
    assert code == done.returncode, done.stderr
    assert said in done.stderr


def test_the_command_keeps_its_input_its_descriptors_and_its_arguments(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, b"inherited")
    os.close(write)
    script = f"import os, sys; print(sys.stdin.read(), os.read({read}, 99).decode(), sys.argv[1:])"
    done = subprocess.run(
        [*AMMETER, "--", sys.executable, "-c", script, "--name", "--", "-x"],
        input="typed",
        capture_output=True,
        text=True,
        timeout=60,
        pass_fds=(read,),
    )
    os.close(read)
    assert "typed inherited ['--name', '--', '-x']\n" == done.stdout, done.stderr


def test_a_sitecustomize_of_the_user_has_its_turn(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("OWN = 'here'\n")
    script = "import sitecustomize, sys; print(sitecustomize.OWN, [path for path in sys.path if 'launch' in path])"
    done = subprocess.run(
        [*AMMETER, "--", sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))},
    )
    assert "here []\n" == done.stdout, done.stderr


def test_a_sitecustomize_of_the_user_that_fails_is_told_by_python_as_without_us(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import no_such_module\n")
    done = subprocess.run(
        [*AMMETER, "--", sys.executable, "-c", "print('runs')"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))},
    )
    bare = subprocess.run(
        [sys.executable, "-c", "print('runs')"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))},
    )
    assert ("runs\n", bare.stdout) == (done.stdout, done.stdout)
    assert bare.stderr.splitlines()[-1] in done.stderr or "no_such_module" in done.stderr
