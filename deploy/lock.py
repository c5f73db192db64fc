"""Writes deploy/locks: every distribution that an image installs, with versions and file hashes.

Versions come from constraints.txt, requirements from the two pyproject.toml files. usage: make lock
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "deploy" / "locks"

DISTRIBUTIONS = {"collector": ("agent", "server"), "shipper": ("agent",)}
"""Image -> the distributions of this repository that it installs."""

BUILD_LOCK = "build"
"""The lock of the build requirements of our distributions.

It stays in the first stage of an image.
"""


def main() -> int:
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        print("lock: uv is not installed; call it as: make lock", file=sys.stderr)
        return 1
    LOCKS.mkdir(exist_ok=True)
    for name, requirements in locks().items():
        (LOCKS / f"{name}.txt").write_text(_HEADER + _resolved(uv, requirements))
    return 0


def locks() -> dict[str, list[str]]:
    """Maps each lock to its requirements, without the distributions of this repository."""
    wanted = {
        image: sorted({one for part in parts for one in _requirements(part)}) for image, parts in DISTRIBUTIONS.items()
    }
    wanted[BUILD_LOCK] = sorted({one for part in DISTRIBUTIONS["collector"] for one in _project(part, "build-system")})
    return wanted


def _requirements(part: str) -> Iterator[str]:
    return (one for one in _project(part, "project") if not one.startswith("ammeter"))


def _project(part: str, table: str) -> list[str]:
    content = tomllib.loads((ROOT / part / "pyproject.toml").read_text())[table]
    requirements: list[str] = content["requires" if table == "build-system" else "dependencies"]
    return requirements


_HEADER = "# Generated: make lock\n"


def _resolved(uv: str, requirements: list[str]) -> str:
    """Returns the pinned lines, universal: the same file serves amd64 and arm64."""
    command = [uv, "pip", "compile", "-", "--quiet", "--generate-hashes", "--universal", "--python-version", "3.11"]
    command += ["--no-header", "--no-annotate", "--constraint", str(ROOT / "constraints.txt")]
    done = subprocess.run(command, input="\n".join(requirements), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"lock: uv could not resolve {', '.join(requirements)}:\n{done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
