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
    user_options = _owner(place, data)
    if not (data / "PG_VERSION").exists():
        _make(service, data, user_options)
    _, port = place.address(service.name).split(":")
    arguments = ["-D", str(data), "-h", "127.0.0.1", "-p", port, "-c", "unix_socket_directories="]
    return start(place, service, [*words(place, service), *arguments], **user_options)


def _owner(place: Place, data: Path) -> dict[str, Any]:
    """Returns the user for PostgreSQL, which refuses to run as root.

    Raises StackError if that user cannot enter the folder of the data.
    """
    if os.geteuid() != 0:
        return {}
    closed = [parent for parent in place.folder.parents if not parent.stat().st_mode & 0o001]
    if closed:
        raise StackError(
            f"PostgreSQL does not run as root, and its user postgres cannot enter {closed[0]}; "
            f"run as another user, or use another folder: --folder /var/tmp/ammeter"
        )
    for parent in data.parents:
        if parent == place.folder.parent:
            break
        parent.chmod(0o711)
    shutil.chown(data, "postgres")
    data.chmod(0o700)
    return {"user": "postgres", "group": "postgres", "extra_groups": [], "cwd": data}


def _make(service: Service, data: Path, user_options: dict[str, Any]) -> None:
    settings = service.environment
    passwords = data.parent / "password"
    passwords.write_text(settings["POSTGRES_PASSWORD"])
    if user_options:
        shutil.chown(passwords, user_options["user"])
    passwords.chmod(0o600)
    init = [*program("initdb"), "-D", str(data), "-U", settings["POSTGRES_USER"], "-A", "scram-sha-256"]
    _call([*init, "--pwfile", str(passwords), "-E", "UTF8", "--locale=C", "-N"], "", user_options)
    passwords.unlink()
    _call(
        [*program("postgres"), "--single", "-D", str(data), "postgres"],
        f'CREATE DATABASE "{settings["POSTGRES_DB"]}"',
        user_options,
    )


def _call(command: list[str], standard_input: str, user_options: dict[str, Any]) -> None:
    done = subprocess.run(command, input=standard_input, text=True, capture_output=True, timeout=120, **user_options)
    if done.returncode:
        raise StackError(f"{command[0]} failed: {done.stderr.strip()[-1000:]}")
