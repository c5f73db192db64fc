"""A PostgreSQL of a test's own: a fresh one in a temporary folder, reached by its socket, gone when the test is."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.parts import missing


@contextmanager
def postgresql() -> Iterator[str]:
    """Its URL. Where PostgreSQL is not installed the test is skipped."""
    control = _control()
    folder = Path(tempfile.mkdtemp(prefix="ammeter-postgresql-"))  # short: a socket's path has at most 107 bytes
    owner: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(folder, "postgres")
        owner = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]

    def ctl(*words: str) -> None:
        command = [*owner, control, "-D", str(folder / "data"), *words]
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, timeout=60)

    try:
        ctl("init", "-o", "-A trust -N -U ammeter")
        ctl(
            "start",
            "-w",
            "-l",
            str(folder / "log"),
            "-o",
            f"-c listen_addresses='' -c unix_socket_directories={folder}",
        )
        try:
            yield f"postgresql://ammeter@/postgres?host={folder}"
        finally:
            ctl("stop", "-m", "immediate")
    finally:
        shutil.rmtree(folder)


def _control() -> str:
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    found = shutil.which("pg_ctl") or (packaged[-1] if packaged else None)
    if found is None:
        missing("PostgreSQL is not installed; apt-get install postgresql to test on it")
    return str(Path(found).resolve())
