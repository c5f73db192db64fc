"""A database that is newer, read-only, damaged or none at all: a sentence and a remedy, at the start and later."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from ammeter_server.__main__ import main
from ammeter_server.db import connect, migrations
from tests import forked
from tests.server.databases import postgresql_server
from tests.server.db.damage import made, overwrite
from tests.server.disks import small_disk
from tests.server.feeding import serving

COMMANDS = (
    ["serve", "--port", "1"],
    ["migrate"],
    ["migrate", "--back-to", "0003", "--yes"],
    ["token", "create", "x"],
    ["token", "list"],
    ["token", "revoke", "x"],
    ["audit"],
    ["storage", "--json"],
)


def newer(file: Path) -> None:
    with sqlite3.connect(made(file)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'f00d'")
    connection.close()


def of_two_schemas(file: Path) -> None:
    with sqlite3.connect(made(file)) as connection:
        connection.execute("INSERT INTO alembic_version VALUES ('f00d')")
    connection.close()


def truncated(file: Path) -> None:
    os.truncate(made(file), 5 * 4096)


def overwritten(file: Path) -> None:
    overwrite(made(file), 4096)


def random_bytes(file: Path) -> None:
    file.write_bytes(random.Random(1).randbytes(40_000))


def a_few_words(file: Path) -> None:
    file.write_text("hello")


def a_folder(file: Path) -> None:
    file.mkdir()


def below_a_file(file: Path) -> None:
    file.parent.rmdir()
    file.parent.write_text("a file")


def of_another_program(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE runs (id INTEGER)")
    connection.close()


def without_its_tables(file: Path) -> None:
    with sqlite3.connect(made(file)) as connection:
        for table in ("tokens", "audit", "chunks", "segments"):
            connection.execute(f"DROP TABLE {table}")
    connection.close()


BAD: dict[Callable[[Path], None], str] = {
    newer: "which this version does not know",
    of_two_schemas: "which this version does not know",
    truncated: "restore a backup",
    overwritten: "restore a backup",
    random_bytes: "name the collector's own file, or restore a backup",
    a_few_words: "name the collector's own file, or restore a backup",
    a_folder: "name a file that this user may read and write, in such a folder",
    below_a_file: "name a file in a folder that this user may write",
    of_another_program: "check that it is a database of the collector",
}


CASES = [
    (words, make) for words in COMMANDS for make in BAD if "--back-to" not in words or make is not of_another_program
]
"""A database without a schema version has no way back; the message says so."""


@pytest.mark.parametrize(
    ("words", "make"), CASES, ids=lambda value: getattr(value, "__name__", None) or " ".join(value)
)
def test_every_command_says_what_is_wrong_with_the_database_and_what_to_do(
    words: list[str], make: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "folder" / "collector.db"
    file.parent.mkdir()
    make(file)
    assert 2 == main([*words, "--database-url", f"sqlite:///{file}"])
    output = capsys.readouterr().err
    assert output.startswith("ammeter-server: ")
    assert BAD[make] in output
    assert 1 == len(output.splitlines())


def test_a_database_that_lost_tables_is_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without_its_tables(tmp_path / "c.db")
    for words in (["token", "list"], ["audit"], ["storage"]):
        assert 2 == main([*words, "--database-url", f"sqlite:///{tmp_path / 'c.db'}"])
        assert "check that it is a database of the collector" in capsys.readouterr().err


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("url", ["sqlite:////proc/c.db", "sqlite:////proc/no/such/c.db", "sqlite:///a%00b"])
def test_a_file_that_cannot_be_made_is_named(words: list[str], url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main([*words, "--database-url", url])
    output = capsys.readouterr().err
    assert url in output
    assert "name a file in a folder that this user may write" in output


def test_a_read_only_disk_is_said_by_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with small_disk(tmp_path / "disk", "8m") as disk:
        made(disk.folder / "c.db")
        subprocess.run(["mount", "-o", "remount,ro", disk.folder], check=True)
        for words in COMMANDS:
            for name in ("c.db", "other.db"):
                assert 2 == main([*words, "--database-url", f"sqlite:///{disk.folder / name}"])
                output = capsys.readouterr().err
                assert "this user" in output, output
                assert 1 == len(output.splitlines())


def test_a_process_ends_with_the_sentence_and_no_traceback(tmp_path: Path) -> None:
    random_bytes(tmp_path / "c.db")
    command = [sys.executable, "-m", "ammeter_server", "serve", "--database-url", f"sqlite:///{tmp_path / 'c.db'}"]
    done = forked.run(command, imports=forked.COLLECTOR, capture_output=True, timeout=60)
    assert (2, "") == (done.returncode, done.stdout)
    assert 1 == len(done.stderr.splitlines()), done.stderr


def test_the_demo_says_where_it_could_not_write(tmp_path: Path) -> None:

    environment = os.environ | {"TMPDIR": "/proc", "TEMP": "/proc", "TMP": "/proc"}
    program = "import tempfile; tempfile._candidate_tempdir_list = lambda: ['/proc']; "
    program += "import sys; from ammeter_server.__main__ import main; sys.exit(main(['demo', '--once', '--', 'true']))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert 2 == done.returncode, done.stderr
    assert "TMPDIR" in done.stderr
    assert 1 == len(done.stderr.splitlines()), done.stderr


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql_server() as url:
        store = connect(url)
        migrations.migrate(store)
        store.close()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE ROLE reader LOGIN")
            connection.execute("CREATE ROLE writer LOGIN")
            connection.execute("CREATE ROLE standing LOGIN IN ROLE ammeter")
            connection.execute("ALTER ROLE standing SET default_transaction_read_only = on")
            connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
            connection.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO writer")
        yield url


@pytest.mark.parametrize(
    ("user", "remedy"),
    [
        ("reader", "GRANT SELECT, INSERT, UPDATE, DELETE ON "),
        ("writer", "OWNER TO writer"),
        ("standing", "allow writes in its configuration"),
        ("nobody", 'role "nobody" does not exist'),
    ],
)
def test_a_collector_that_postgresql_does_not_let_write_does_not_start(
    server: str, user: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == main(["serve", "--port", "1", "--database-url", server.replace("ammeter@", f"{user}@")])
    output = capsys.readouterr().err
    assert remedy in output
    assert 1 == len(output.splitlines())


@pytest.mark.parametrize("user", ["reader", "standing"])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_goes_or_says_why_not_where_postgresql_takes_no_writes(
    server: str, user: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([*words, "--database-url", server.replace("ammeter@", f"{user}@")])
    output = capsys.readouterr().err
    reads = words[:2] == ["token", "list"] or words in (["audit"], ["storage", "--json"], ["migrate"])
    if reads:
        assert (0, "") == (code, output)
    else:
        assert 2 == code
        assert 1 == len(output.splitlines()), output
    if "revoke" not in words and not reads:
        assert any(word in output for word in ("is read-only", "denies access", "lacks the privilege", "GRANT"))


def test_a_newer_postgresql_is_said_by_every_command_and_by_readyz(
    server: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        before = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        connection.execute("UPDATE alembic_version SET version_num = 'f00d'")
        try:
            for words in COMMANDS:
                assert 2 == main([*words, "--database-url", server])
                assert "a newer version created it" in capsys.readouterr().err
        finally:
            connection.execute("UPDATE alembic_version SET version_num = %s", before)


def test_a_collector_under_which_the_database_became_newer_is_not_ready_and_says_so(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        with sqlite3.connect(tmp_path / "collector.db") as connection:
            connection.execute("UPDATE alembic_version SET version_num = 'f00d'")
        connection.close()
        answer = client.get("/readyz")
        assert (503, "application/problem+json") == (answer.status_code, answer.headers["content-type"])
        assert "a newer version created it" in answer.json()["detail"]
