"""The shipper process: sends journals to the collector and ends streams whose writer died.

Without a collector, a mirror runs instead and moves journals from tmpfs to disk.

start() runs in the training process and therefore imports almost nothing; the rest runs in the shipper.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ammeter import journal
from ammeter.environment import identity
from ammeter.environment.blas_threads import ONE_THREAD
from ammeter.environment.settings import settings

if TYPE_CHECKING:
    from ammeter.shipper.loop import Shipper

LOG_NAME = "shipper.log"

_NICENESS = 5
_DETACH = (
    f"import os, sys; os.fork() or (os.setsid(), os.nice({_NICENESS}), "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]]))"
)
"""Detaches the shipper from the training process by a second fork. A program that waits for all its children must not
wait for the shipper."""

_START_SECONDS = 30.0
"""Time limit of this intermediate process on a busy machine."""

_INHERITED_VARIABLES = (
    *("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH"),
    *("PYTHONPATH", "PYTHONHOME", "SSL_CERT_FILE", "SSL_CERT_DIR"),
)
"""Environment variables that the shipper inherits: none that concern torch or its launcher."""


def start(run_folder: Path, url: str | None, token: str | None = None) -> str | None:
    """Makes sure that a detached shipper runs for this run on this host.

    Call it after Journal().

    Without a url a mirror is started, which moves journals from tmpfs to run_folder. System errors do not raise.

    Returns:
        None if a shipper runs or was started, else the reason why not.
    """
    return begin(run_folder, url, token)()


def begin(run_folder: Path, url: str | None, token: str | None = None) -> Callable[[], str | None]:
    """Begins what start() does. Call the result, which waits until the shipper is detached and returns start()'s."""
    try:
        if journal.is_locked(_run_lock(run_folder, identity.host(), url is None)):
            return lambda: None
        process = _spawn(run_folder, url, token)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = _failed(error, run_folder, url)
        return lambda: reason

    def finish() -> str | None:
        try:
            code = process.wait(_START_SECONDS)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.wait()
            return _failed(error, run_folder, url)
        return _failed(subprocess.CalledProcessError(code, process.args), run_folder, url) if code else None

    return finish


def _failed(error: Exception, run_folder: Path, url: str | None) -> str:
    remedy = f"; to send the run later: ammeter ship {run_folder}" if url else ""
    return f"the {'shipper' if url else 'mirror'} cannot be started ({error}){remedy}"


def main(argv: list[str] | None = None) -> int:
    """Runs `ammeter ship` and returns its exit code.

    0: everything was delivered. 1: this process did not deliver everything. 2: invalid call.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    folder = Path(options.dir).expanduser().absolute()
    if not folder.is_dir():
        parser.error(f"{options.dir} is not a folder; pass AMMETER_DIR, a run's folder or a stream's folder")
    if options.mirror:
        return _mirror(folder, options.host or identity.host())
    try:
        chosen = settings(options.url)
    except ValueError as error:
        parser.error(str(error))
    if chosen.url is None:
        parser.error("there is no collector; pass --url or set AMMETER_URL")
    lock = None
    if options.host:
        lock = journal.lock(_run_lock(folder, options.host))
        if lock is None:
            return 0
    from ammeter.shipper.leftovers import recover_leftovers
    from ammeter.shipper.loop import Shipper

    recover_leftovers(folder)
    shipper = Shipper(
        folder, chosen.url, chosen.token, host=options.host, once=options.once, idle_exit=options.idle_exit
    )
    signal.signal(signal.SIGTERM, lambda *_: shipper.request_exit())
    try:
        code = _run_until_delivered(shipper, folder, options.host, lock)
    except KeyboardInterrupt:
        code = 130
    if options.json:
        print(json.dumps(_delivered(shipper.stream_folders())))
    return code


def _delivered(streams: Iterable[Path]) -> dict[str, Any]:
    """Returns up to which offset the collector has acknowledged each stream."""
    items = []
    for stream in streams:
        written, acknowledged = journal.end_of(stream), journal.acknowledged(stream)
        items.append(
            {
                "run": stream.parent.name,
                "stream": stream.name,
                "end": written,
                "acknowledged": acknowledged,
                "delivered": acknowledged >= written,
                "refusal": journal.refusal(stream) or None,
            }
        )
    return {"delivered": all(item["delivered"] for item in items), "items": items}


def _mirror(folder: Path, host: str) -> int:
    """Runs a mirror, at most one per run and host.

    The mirror restarts if a stream began while it was exiting.
    """
    from ammeter.shipper.leftovers import recover_leftovers
    from ammeter.shipper.tmpfs_mirror import Mirror

    mirror = Mirror(folder)
    signal.signal(signal.SIGTERM, lambda *_: mirror.request_exit())
    while (lock := journal.lock(_run_lock(folder, host, mirror=True))) is not None:
        recover_leftovers(folder)
        mirror.run()
        journal.unlock(lock)
        if mirror.exit_requested or not mirror.has_work():
            break
    return 0


def _run_until_delivered(shipper: Shipper, folder: Path, host: str | None, lock: int | None) -> int:
    """Runs the shipper until no stream remains.

    The shipper restarts if a stream began while it was exiting and still owned the lock.
    """
    while True:
        code = shipper.run()
        if lock is None or host is None:
            return code
        journal.unlock(lock)
        if code or shipper.exit_requested or not shipper.discover():
            return code
        lock = journal.lock(_run_lock(folder, host))
        if lock is None:
            return code


def _spawn(run_folder: Path, url: str | None, token: str | None) -> subprocess.Popen[bytes]:
    environment = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ} | ONE_THREAD
    root = Path(__file__).resolve().parents[2]
    if root.name not in ("site-packages", "dist-packages"):
        # Needed only outside site-packages. A site-packages folder on PYTHONPATH would precede the standard library.
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), environment.get("PYTHONPATH"))))
    command = [
        sys.executable,
        "-S",
        "-E",
        "-c",
        _DETACH,
        "-m",
        "ammeter.shipper.process",
        str(run_folder),
        "--host",
        identity.host(),
    ]
    if url:
        environment["AMMETER_URL"] = url
        command.append("--idle-exit")
    else:
        command.append("--mirror")
    if token:
        environment["AMMETER_TOKEN"] = token
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    log = os.open(run_folder / LOG_NAME, flags, 0o600)
    try:
        return subprocess.Popen(
            command,
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


def _run_lock(run_folder: Path, host: str, mirror: bool = False) -> Path:
    return run_folder / f"{'mirror' if mirror else 'shipper'}.{host}.lock"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ammeter ship",
        description="Send the journals in DIR to a collector.",
        epilog="Exit code: 0 if everything was delivered, 1 if not, 2 for a wrong call.",
    )
    parser.add_argument("dir", metavar="DIR", help="AMMETER_DIR, a run's folder or a stream's folder")
    parser.add_argument("--url", help="address of the collector (default: AMMETER_URL); AMMETER_TOKEN has the token")
    parser.add_argument("--once", action="store_true", help="send the present data, then exit")
    parser.add_argument(
        "--idle-exit", action="store_true", help="exit when all writers have ended and everything is delivered"
    )
    parser.add_argument("--mirror", action="store_true", help="send nothing; move data from tmpfs to the disk")
    parser.add_argument("--json", action="store_true", help="at the end, print what the collector has as JSON")
    parser.add_argument("--host", help="send only the streams that were written on this host")
    return parser


if __name__ == "__main__":
    sys.exit(main())
