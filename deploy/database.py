"""Starts PostgreSQL like its image: creates user, password and database on the first start."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from deploy.compose import Service
from deploy.place import Place
from deploy.processes import Process, StackError, program, start, words

DATA = "/var/lib/postgresql/data"


def start_database(place: Place, service: Service) -> Process:
    """Creates the cluster if needed, and starts the server on TCP loopback only."""
    data = place.path(service, DATA)
    who = _owner(place, data)
    if not (data / "PG_VERSION").exists():
        _make(service, data, who)
    _, port = place.address(service.name).split(":")
    more = ["-D", str(data), "-h", "127.0.0.1", "-p", port, "-c", "unix_socket_directories="]
    return start(place, service, [*words(place, service), *more], **who)


def _owner(place: Place, data: Path) -> dict[str, Any]:
    """Returns the user for PostgreSQL, which refuses to run as root.

    Raises StackError if that user cannot enter the folder of the data.
    """
    if os.geteuid() != 0:
        return {}
    shut = [each for each in place.folder.parents if not each.stat().st_mode & 0o001]
    if shut:
        raise StackError(
            f"PostgreSQL does not run as root, and its user postgres cannot enter {shut[0]}; "
            f"call it as another user, or name a folder outside of that: --folder /var/tmp/ammeter"
        )
    for each in data.parents:
        if each == place.folder.parent:
            break
        each.chmod(0o711)
    shutil.chown(data, "postgres")
    data.chmod(0o700)
    return {"user": "postgres", "group": "postgres", "extra_groups": [], "cwd": data}


def _make(service: Service, data: Path, who: dict[str, Any]) -> None:
    said = service.environment
    passwords = data.parent / "password"
    passwords.write_text(said["POSTGRES_PASSWORD"])
    if who:
        shutil.chown(passwords, who["user"])
    passwords.chmod(0o600)
    init = [*program("initdb"), "-D", str(data), "-U", said["POSTGRES_USER"], "-A", "scram-sha-256"]
    _call([*init, "--pwfile", str(passwords), "-E", "UTF8", "--locale=C", "-N"], "", who)
    passwords.unlink()
    _call(
        [*program("postgres"), "--single", "-D", str(data), "postgres"], f'CREATE DATABASE "{said["POSTGRES_DB"]}"', who
    )


def _call(command: list[str], said: str, who: dict[str, Any]) -> None:
    done = subprocess.run(command, input=said, text=True, capture_output=True, timeout=120, **who)
    if done.returncode:
        raise StackError(f"{command[0]} failed: {done.stderr.strip()[-1000:]}")
