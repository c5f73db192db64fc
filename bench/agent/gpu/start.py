"""Finds a Python whose torch sees a GPU, adds the packages that it lacks, and runs the benchmark with it.

    make gpu [GPU_PYTHON=/path/to/python] [ARGS="--seconds 460 --only kernel,tests --out FILE --dry-run"]

The machine may have no network. What is installed there is used: of GPU_PYTHON, python3 and .venv the first one whose
torch sees a GPU; the packages that Ammeter needs come from build/gpu/wheels (`make gpu-wheels`) or from the network,
into build/gpu/packages and nowhere else. This file needs nothing but Python's own library.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "build" / "gpu"
PACKAGES, WHEELS = FOLDER / "packages", FOLDER / "wheels"

NEEDED = {
    "jinja2": "jinja2",
    "msgspec": "msgspec",
    "numpy": "numpy",
    "rich": "rich",
    "urllib3": "urllib3",
    "zstandard": "zstandard",
    "pytest": "pytest",
    "pytest_timeout": "pytest-timeout",
    "pynvml": "nvidia-ml-py",
}
"""Modules of the benchmark, and the distributions that have them. What these need comes with them or is there."""

LOOK_SECONDS = 90
INSTALL_SECONDS = 60

LOOK = f"""
import importlib.util, sys
assert sys.version_info >= (3, 11), f"Python {{sys.version.split()[0]}} is older than 3.11"
import torch
missing = [name for name in {tuple(NEEDED)} if importlib.util.find_spec(name) is None]
print("cuda" if torch.cuda.is_available() else "none", torch.__version__, ",".join(missing))
"""


def main(arguments: Sequence[str] | None = None) -> int:  # noqa: RET503 - the last call does not return
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    dry = "--dry-run" in arguments
    began = time.monotonic()
    for python in candidates():
        device, missing = look(python)
        if device == "cuda" or (dry and device == "none"):
            break
    else:
        say("no Python here has a torch that sees a GPU. With a GPU and a network, `make install` makes one in .venv;")
        say("GPU_PYTHON=/path/to/python names another; ARGS=--dry-run tries the command without a GPU.")
        return 1
    if missing and not install(python, missing):
        return 1
    say(f"using {python}, found in {time.monotonic() - began:.0f} s")
    os.chdir(ROOT)
    os.execve(python, [python, "-m", "bench.agent.gpu", *arguments], environment())


def candidates() -> list[str]:
    """Interpreters in the order in which they are tried."""
    asked = os.environ.get("GPU_PYTHON")
    if asked:
        return [shutil.which(asked) or asked]
    names = (shutil.which("python3"), sys.executable, str(ROOT / ".venv" / "bin" / "python"))
    return list(dict.fromkeys(name for name in names if name and Path(name).exists()))


def look(python: str) -> tuple[str, list[str]]:
    """Returns "cuda", "none" without a GPU, or "" without a torch; and the missing modules."""
    try:
        command = [python, "-c", LOOK]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=LOOK_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        say(f"{python}: {error}")
        return "", []
    if done.returncode:
        say(f"{python}: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
        return "", []
    device, version, missing = [*done.stdout.strip().splitlines()[-1].split(" "), ""][:3]
    warnings = "" if device == "cuda" else " ".join(done.stderr.split())[:300]
    say(f"{python}: torch {version}, {'a GPU' if device == 'cuda' else 'no GPU'}. {warnings}".rstrip(". "))
    return device, [name for name in missing.split(",") if name]


def install(python: str, missing: Sequence[str]) -> bool:
    """Installs into build/gpu/packages: from the wheels, if there are any, else from the network."""
    names = [NEEDED[name] for name in missing]
    say(f"installing what {python} lacks: {', '.join(names)}")
    pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--target", str(PACKAGES), "--upgrade"]
    wheels = ["--no-index", "--no-deps", "--find-links", str(WHEELS)]
    network = ["--retries", "0", "--timeout", "10"]
    failures = []
    for options in ([wheels] if WHEELS.is_dir() else []) + [network]:
        try:
            done = subprocess.run([*pip, *options, *names], capture_output=True, text=True, timeout=INSTALL_SECONDS)
        except subprocess.TimeoutExpired:
            failures.append(f"took longer than {INSTALL_SECONDS} s")
            continue
        if not done.returncode:
            found = [python, "-c", f"import {', '.join(missing)}"]
            done = subprocess.run(found, env=environment(), capture_output=True, text=True, timeout=LOOK_SECONDS)
        if not done.returncode:
            return True
        failures.append(done.stderr.strip()[-500:])
    say(f"they cannot be installed: {failures[-1]}")
    say(f"`make gpu-wheels` downloads them elsewhere for this machine: copy {WHEELS.relative_to(ROOT)} here.")
    return False


def environment() -> dict[str, str]:
    """The repository before, and the added packages after what the interpreter has."""
    paths = [str(ROOT / "agent"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")]), str(PACKAGES)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "PYTHONUNBUFFERED": "1"}


def say(line: str) -> None:
    print(f"gpu: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
