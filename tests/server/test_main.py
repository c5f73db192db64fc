from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live

from ammeter_server.__main__ import main
from ammeter_server.cli.demo.processes import free_port
from ammeter_server.cli.demo.progress import Show, escalation_line, incident_lines, progress_line
from ammeter_server.config.settings import READERS
from ammeter_server.db import migrations
from tests import forked
from tests.alerting import until
from tests.server.feeding import wait_until

ROOT = Path(__file__).parents[2]
SERVER = [sys.executable, "-m", "ammeter_server"]


@contextmanager
def started(*words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = forked.Popen(
        [*SERVER, *words],
        imports=forked.COLLECTOR,
        env=os.environ | environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return bool(json.load(answer)["status"] == "ready")
    except OSError:
        return False


def test_serve_makes_its_database_answers_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    port, url = free_port(), f"sqlite:///{tmp_path / 'new' / 'c.db'}"
    with started("serve", "--port", str(port), "--database-url", url) as server:
        wait_until(lambda: answers(port))
        server.send_signal(signal.SIGTERM)
        output, _ = server.communicate(timeout=20)
        assert server.returncode in (0, -signal.SIGTERM)
    assert f"Ammeter collector at http://127.0.0.1:{port} (no channel: incidents are on the page only)" in output
    assert "Traceback" not in output
    assert (tmp_path / "new" / "c.db").is_file()


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["serve", "--host", "0.0.0.0"], "AMMETER_SERVER_TOKEN_FILE"),
        (["serve", "--notify", "carrier-pigeon://coop"], "Apprise does not accept"),
        (["serve", "--port", "0"], "use a number from 1 to 65535"),
        (["serve", "--database-url", "postgresql://nobody@127.0.0.1:1/x"], "the database does not answer"),
        (["token", "create", "x", "--scopes", "everything"], "ingest, read, admin"),
        (["token", "create", "x", "--expires", "soon"], "30d, 12h or 45m"),
        (["token", "create", "token file"], "and no reserved name"),
        (["token", "revoke", "x"], "there is no token 'x'; there are none"),
    ],
)
def test_what_cannot_be_is_said_with_its_remedy(
    words: list[str], remedy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--database-url" not in words:
        words = [*words, "--database-url", f"sqlite:///{tmp_path / 'c.db'}"]
    assert 2 == main(words)
    output = capsys.readouterr().err
    assert remedy in output
    assert output.startswith("ammeter-server: ")


@pytest.mark.parametrize("url", ["https://ammeter.example", "http://10.1.2.3:8480", "http://0.0.0.0:8480"])
def test_a_public_address_wants_a_token_at_the_start(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--database-url", f"sqlite:///{tmp_path / 'c.db'}"]
    assert 2 == main(["serve", "--public-url", url, *words])
    output = capsys.readouterr().err
    assert all(
        word in output for word in ("AMMETER_SERVER_PUBLIC_URL", url, "AMMETER_SERVER_TOKEN_FILE", "token create")
    )
    assert 0 == main(["token", "create", "page", "--scopes", "read", *words])
    port = free_port()
    with started("serve", "--public-url", url, "--port", str(port), *words):
        wait_until(lambda: answers(port))


def test_a_new_token_is_printed_once_and_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'c.db'}"
    assert 0 == main(["token", "create", "grafana", "--scopes", "read", "--database-url", url])
    token = capsys.readouterr().out.strip()
    assert 43 == len(token)
    assert token.encode() not in (tmp_path / "c.db").read_bytes()


def test_migrate_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["migrate", "--database-url", f"sqlite:///{tmp_path / 'c.db'}"]
    assert [0, 0] == [main(words), main(words)]
    assert ["(before: None)", f"(before: {migrations.newest()})"] == [
        line[line.index("(") :] for line in capsys.readouterr().out.splitlines()
    ]


def test_the_demo_says_how_to_give_it_a_command_where_there_is_no_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert 2 == main(["demo", "--once"])
    assert "ammeter-server demo -- python train.py" in capsys.readouterr().err


def ours(marks: list[str]) -> list[str]:
    """Command lines of processes that carry one of the marks in their environment or arguments."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue
        if any(mark.encode() in command for mark in marks) and folder.name != str(os.getpid()):
            found.append(command[:200].decode(errors="replace"))
    return found


def test_the_demo_finds_what_it_planted_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with started("demo", "--once", TMPDIR=str(tmp_path)) as demo:
        output, _ = demo.communicate(timeout=240)
    assert 0 == demo.returncode, output
    lines = output.splitlines()
    for line in ("step", "INCIDENT nonfinite-gradient", "  cause  ", "  fix    ", "  page   http://127.0.0.1:"):
        assert any(printed.startswith(line) for printed in lines), output
    assert "the planted fault was found: nonfinite-gradient" == lines[-1]
    marks = [str(tmp_path)]  # a shipper gives its lock back before it is gone
    until(lambda: not ours(marks), "nothing is left", 10, explain=lambda: ours(marks))
    assert [] == list(tmp_path.glob("ammeter-*"))


def test_a_demo_that_is_ended_half_way_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with started("demo", "--", *command, TMPDIR=str(tmp_path)) as demo:
        training = "\0".join(command)
        wait_until(lambda: any(command_line.startswith(training) for command_line in ours([str(tmp_path)])), 60)
        demo.send_signal(signal.SIGTERM)
        output, _ = demo.communicate(timeout=60)
    assert 130 == demo.returncode, output
    assert [] == ours([str(tmp_path)])
    assert [] == list(tmp_path.glob("ammeter-*"))


def test_the_demo_hands_on_the_exit_code_and_the_last_words_of_a_command(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; print('last words'); sys.exit(7)"]
    with started("demo", "--once", "--", *command, TMPDIR=str(tmp_path)) as demo:
        output, _ = demo.communicate(timeout=120)
    assert 7 == demo.returncode, output
    assert "last words" in output


def test_progress_and_incidents_are_told_in_words() -> None:
    run = {"last_step": 60, "latest": {"scale": 65536.0, "loss": "NaN"}, "counters": {"skipped": 4}}
    assert "step    60   scale 65536   loss NaN   skipped 4" == progress_line(run)
    incident = {"verdict": "scale-collapse", "severity": "page", "first_step": 60, "tensor": None, "module": None}
    incident |= {"caller": "train.py:5", "cause": "why", "fix": "do"}
    assert [
        "INCIDENT scale-collapse (page) at step 60",
        "  where  train.py:5",
        "  cause  why",
        "  fix    do",
        "  page   http://x",
    ] == incident_lines(incident, "http://x")
    assert "INCIDENT scale-collapse is a page now; it was a ticket" == escalation_line(incident, "ticket")


def test_on_a_terminal_an_incident_is_shown_to_its_last_word(capsys: pytest.CaptureFixture[str]) -> None:
    incident = {"verdict": "scale-collapse", "severity": "page", "first_step": 60, "tensor": None, "module": None}
    incident |= {"caller": None, "cause": " ".join(f"cause-{n}" for n in range(40)), "fix": "do"}
    console = Console(width=60, soft_wrap=True)
    Show(console, Live(console=console)).incident(incident, "http://x")
    shown = capsys.readouterr().out
    assert [f"cause-{n}" for n in range(40)] == re.findall(r"cause-\d+", shown)


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert 0 == ended.value.code
    assert re.fullmatch(r"ammeter-server \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_the_help_of_serve_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    named = set(re.findall(r"AMMETER_SERVER_([A-Z_]+)", capsys.readouterr().out))
    assert {name for name, _ in READERS.values()} - named <= {"TLS_CERT", "TLS_KEY"}


def test_a_free_port_is_free() -> None:
    with socket.create_server(("127.0.0.1", free_port())):
        pass
