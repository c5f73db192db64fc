"""Downloads what a machine with torch but without a network lacks for the benchmark, into build/gpu/wheels.

    make gpu-wheels [ARGS="3.12 aarch64"]   # the version of its Python, and its processor (x86_64)

It needs nothing but Python's own library and pip.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from bench.agent.gpu.start import ROOT, WHEELS

CARRIED = ("msgspec", "zstandard", "nvidia-ml-py", "pytest-timeout")
"""What programs that use torch seldom need. rich, jinja2, numpy and pytest are taken to be there."""

GLIBC = ("2_17", "2_24", "2_27", "2_28", "2_31", "2_34")


def main(arguments: Sequence[str] | None = None) -> int:
    version, machine = [*(sys.argv[1:] if arguments is None else arguments), "x86_64"][:2]
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    platforms = [f"manylinux_{glibc}_{machine}" for glibc in GLIBC] + [f"manylinux2014_{machine}"]
    WHEELS.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", version, "--dest", str(WHEELS)]
    command += [word for platform in platforms for word in ("--platform", platform)]
    done = subprocess.run([*command, *(f"{name}=={pinned[name]}" for name in CARRIED)], check=False)
    print(*sorted(str(wheel.relative_to(ROOT)) for wheel in WHEELS.glob("*.whl")), sep="\n")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
