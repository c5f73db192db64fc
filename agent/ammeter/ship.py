"""The shipper: a process of its own that brings journals to the collector, and ends streams whose writer died.

start() is called in the training process and therefore imports next to nothing; the rest runs in the shipper.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ammeter import identity, journal
from ammeter.settings import settings

if TYPE_CHECKING:
    from ammeter.shipping.shipper import Shipper

LOG = "shipper.log"
NICENESS = 5

_PASSED_ON = (
    *("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH"),
    *("PYTHONPATH", "PYTHONHOME", "SSL_CERT_FILE", "SSL_CERT_DIR"),
)
"""What of the training process's environment the shipper gets: nothing that concerns torch or its launcher."""


def start(run_folder: Path, url: str, token: str | None = None) -> str | None:
    """Sees to it that a shipper runs for this run on this host, detached from this process. Call it after Journal().

    None when one runs or was started, else the reason why not. Never raises for what the system refuses.
    """
    try:
        if journal.is_locked(_run_lock(run_folder, identity.host())):
            return None
        _spawn(run_folder, url, token)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"the shipper cannot be started ({error}); send the run later with: ammeter ship {run_folder}"
    return None


def main(argv: list[str] | None = None) -> int:
    """ammeter ship. 0: everything was delivered; 1: something was not, by this process; 2: wrong call."""
    parser = _parser()
    words = parser.parse_args(argv)
    folder = Path(words.dir).expanduser().absolute()
    if not folder.is_dir():
        parser.error(f"{words.dir} is no folder; give AMMETER_DIR, a run's folder or a stream's folder")
    try:
        chosen = settings(words.url)
    except ValueError as error:
        parser.error(str(error))
    if chosen.url is None:
        parser.error("no collector is named; give --url or set AMMETER_URL")
    only = None
    if words.host:
        only = journal.lock(_run_lock(folder, words.host))
        if only is None:
            return 0
    from ammeter.shipping.shipper import Shipper

    shipper = Shipper(folder, chosen.url, chosen.token, host=words.host, once=words.once, idle_exit=words.idle_exit)
    signal.signal(signal.SIGTERM, lambda *_: shipper.hurry())
    try:
        return _until_nothing_is_left(shipper, folder, words.host, only)
    except KeyboardInterrupt:
        return 130


def _until_nothing_is_left(shipper: Shipper, folder: Path, host: str | None, only: int | None) -> int:
    """Runs the shipper; a stream that began while it was leaving, and saw the lock still held, is not left behind."""
    while True:
        code = shipper.run()
        if only is None or host is None:
            return code
        journal.unlock(only)
        if code or shipper.hurried or not shipper.discover():
            return code
        only = journal.lock(_run_lock(folder, host))
        if only is None:
            return code


def _spawn(run_folder: Path, url: str, token: str | None) -> None:
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    home = Path(__file__).resolve().parents[1]
    if home.name not in ("site-packages", "dist-packages"):
        # Where the interpreter does not look by itself; the others must not come before the standard library.
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(home), environment.get("PYTHONPATH"))))
    environment["AMMETER_URL"] = url
    if token:
        environment["AMMETER_TOKEN"] = token
    words = [sys.executable, "-m", "ammeter.ship", str(run_folder), "--idle-exit", "--host", identity.host()]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    log = os.open(run_folder / LOG, flags, 0o600)
    try:
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd="/",
            close_fds=True,
            start_new_session=True,
        )
    finally:
        os.close(log)
    child.returncode = 0  # it outlives us on purpose: nobody waits for it, and nobody is to be warned about that
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, child.pid, min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS))


def _run_lock(run_folder: Path, host: str) -> Path:
    return run_folder / f"shipper.{host}.lock"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ammeter ship", description="Sends the journals that lie in DIR.")
    parser.add_argument("dir", metavar="DIR", help="AMMETER_DIR, a run's folder or a stream's folder")
    parser.add_argument("--url", help="the collector; AMMETER_URL otherwise. The token is read from AMMETER_TOKEN")
    parser.add_argument("--once", action="store_true", help="send what lies there now, then leave")
    parser.add_argument("--idle-exit", action="store_true", help="leave when all writers are gone and all is delivered")
    parser.add_argument("--host", help="only streams that were written on this host")
    return parser


if __name__ == "__main__":
    sys.exit(main())
