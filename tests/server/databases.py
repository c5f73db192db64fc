"""Databases for one test: PostgreSQL in a temporary folder, reached by socket, and SQLite.

Both are copies of a template that each worker creates once: initdb takes a second, and so do a start of PostgreSQL and
its migrations; the migrations of a file take 50 ms.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

import psycopg

from ammeter_server.db import connect, migrations
from tests.parts import missing

_TEMPLATE = "migrated"
"""Database of the worker's PostgreSQL server with the newest schema and no rows."""

_copies: set[str] = set()
"""URLs of the copies of it."""


def copied(url: str) -> None:
    """Notes that the database has the newest schema, so that `migrate` leaves it alone."""
    _copies.add(url)


def migrate(url: str) -> None:
    """Migrates an empty database; a missing SQLite file is copied from a template."""
    file = Path(url.removeprefix("sqlite:///"))
    if url in _copies:
        return
    if url.startswith("sqlite:///") and not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_migrated_file(), file)
        file.chmod(0o600)
    else:
        _migrate(url)


def _migrate(url: str) -> None:
    store = connect(url)
    try:
        migrations.migrate(store)
    finally:
        store.close()


@cache
def _migrated_file() -> Path:
    """Returns an SQLite file with the newest schema and no rows."""
    folder = Path(tempfile.mkdtemp(prefix="ammeter-sqlite-"))
    atexit.register(shutil.rmtree, folder)
    _migrate(f"sqlite:///{folder / 'template.db'}")
    assert [folder / "template.db"] == list(folder.iterdir()), "what was written is not in the file yet"
    return folder / "template.db"


@contextmanager
def postgresql(*, migrated: bool = True) -> Iterator[str]:
    """Yields the URL of a PostgreSQL database with the newest schema, or without tables.

    It is on a server that all tests of the worker use. Skips the test if PostgreSQL is not installed.
    """
    server = _shared_server()
    name = f"of_a_test_{uuid.uuid4().hex}"
    url = server.url_of(name)
    server.execute(f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE if migrated else 'template1'}")
    if migrated:
        _copies.add(url)
    try:
        yield url
    finally:
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def postgresql_server() -> Iterator[str]:
    """Yields the URL of a PostgreSQL server for one test, which changes its settings or roles."""
    with folder_of_its_own() as folder:
        server = PostgreSQL(folder)
        server.start()
        try:
            yield server.url
        finally:
            server.stop()


@cache
def _shared_server() -> PostgreSQL:
    """Starts the server of this worker, which ends with the worker."""
    with ExitStack() as stack:
        server = PostgreSQL(stack.enter_context(folder_of_its_own()), fsync="off")  # no test cuts its power
        stack.callback(server.stop)
        server.start(with_worker=True)
        server.execute(f"CREATE DATABASE {_TEMPLATE}")
        _migrate(server.url_of(_TEMPLATE))
        atexit.register(stack.pop_all().close)
    return server


@contextmanager
def folder_of_its_own() -> Iterator[Path]:
    """Yields a folder that the PostgreSQL user may write to."""
    _program("postgres")
    folder = Path(tempfile.mkdtemp(prefix="ammeter-postgresql-"))  # short: a socket's path has at most 107 bytes
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(folder, "postgres")
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


class PostgreSQL:
    """A server that can be killed and restarted.

    data: folder of its files, if not in the folder of its socket.
    """

    def __init__(self, folder: Path, data: Path | None = None, **settings: str) -> None:
        self.url = f"postgresql://ammeter@/postgres?host={folder}&port={settings.get('port', '5432')}"
        self._folder = folder
        self._data = data or folder / "data"
        given = {"listen_addresses": "", "unix_socket_directories": str(folder), **settings}
        self._settings = [word for name, value in given.items() for word in ("-c", f"{name}={value}")]
        self._process: subprocess.Popen[bytes] | None = None
        subprocess.run(["cp", "-a", "--reflink=auto", str(_cluster()), str(self._data)], check=True, timeout=60)

    def url_of(self, database: str) -> str:
        return self.url.replace("/postgres?", f"/{database}?")

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode())

    def start(self, *, with_worker: bool = False) -> None:
        """Returns when it answers.

        It is a direct child, so that nothing is left after a kill. with_worker: also end it when this thread ends.
        """
        ending = ["setpriv", "--pdeathsig=QUIT"] if with_worker and shutil.which("setpriv") else []
        command = [*_owner(), *ending, str(_program("postgres")), "-D", str(self._data), *self._settings]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while not self._answers():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def stop(self) -> None:
        """Stops immediately, as the files are deleted. Repeated calls are allowed."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(60)
            self._process = None

    def kill(self) -> None:
        """kill -9 of all its processes, and wait until they are gone."""
        assert self._process is not None
        first = self._process.pid
        several = [int(pid) for pid in Path(f"/proc/{first}/task/{first}/children").read_text().split()]
        for pid in (first, *several):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(60)
        self._process = None
        deadline = time.monotonic() + 60
        while any(_lives(pid) for pid in several):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def log(self) -> str:
        return (self._folder / "log").read_text()

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True


@cache
def _cluster() -> Path:
    """Returns the files of a server that has not been started."""
    folder = Path(tempfile.mkdtemp(prefix="ammeter-postgresql-"))
    atexit.register(shutil.rmtree, folder)
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    data = folder / "data"
    command = [*_owner(), str(_program("initdb")), "-D", str(data), "-A", "trust", "-N", "-U", "ammeter"]
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, timeout=60)
    return data


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _owner() -> list[str]:
    """PostgreSQL refuses to run as root."""
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []


def _program(name: str) -> Path:
    packaged = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = shutil.which(name) or (packaged[-1] if packaged else None)
    if found is None:
        missing("PostgreSQL is not installed; apt-get install postgresql to test on it")
    return Path(found).resolve()
