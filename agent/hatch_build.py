"""Compiles ammeter/tensors/reading.c into the package if there is a C compiler.

Without a compiler the package is pure Python. Nothing is compiled when a program runs. ammeter.tensors.available()
reports the result for an installation.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import sysconfig
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TENSORS = Path("ammeter") / "tensors"
FLAGS = ("-O3", "-fPIC", "-shared", "-fopenmp-simd", "-fno-math-errno", "-ffp-contract=fast")
"""Compiler flags. CFLAGS is ignored: -ffast-math there would break NaN handling, and flush subnormals in the whole
process that loads the library."""


class Compiling(BuildHookInterface[Any]):
    """Build hook that runs before a wheel, editable or not, is assembled."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = Path(self.root) / TENSORS
        failures = compile_into(folder)
        if failures:
            self.app.display_warning(
                "ammeter is installed without its compiled reader: on the CPU, torch's operators read gradients slowly,"
                " so norms are read less often within the budget. CUDA is not affected. Cause: " + "; ".join(failures)
            )
            return
        build_data["artifacts"].append((TENSORS / "libreading.so").as_posix())
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")


def compile_into(folder: Path) -> list[str]:
    """Compiles reading.c in this folder to libreading.so beside it.

    Returns:
        The errors of all attempts; empty on success. After a failure there is no library.
    """
    source, library = folder / "reading.c", folder / "libreading.so"
    made = folder / f".libreading.{os.getpid()}.so"  # running programs keep the old one: replaced, not overwritten
    checksum = zlib.crc32(source.read_bytes())
    failures: list[str] = []
    for compiler in compilers():
        for more in ((), ("-DPORTABLE",)):
            words = [*compiler, *FLAGS, *more, f"-DSOURCE={checksum}u", str(source), "-o", str(made), "-lm"]
            failure = attempt(words, made, checksum)
            if failure is None:
                made.replace(library)
                return []
            failures.append(failure)
    made.unlink(missing_ok=True)
    library.unlink(missing_ok=True)
    return failures or ["no C compiler was found: install gcc or clang, or set CC"]


def compilers() -> list[list[str]]:
    """Returns the command lines of the compilers to try; only CC if it is set."""
    asked = os.environ.get("CC")
    if asked:
        return [shlex.split(asked)]
    return [[name] for name in ("cc", "gcc", "clang") if shutil.which(name)]


def attempt(words: list[str], made: Path, checksum: int) -> str | None:
    """Runs a compiler; returns None if the library loads here, else the reason."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{words[0]}: {error}"
    if done.returncode:
        return f"{words[0]}: {(done.stderr.strip() or 'no message').splitlines()[0]}"
    try:
        loaded = ctypes.CDLL(str(made)).ammeter_source() & 0xFFFFFFFF
    except (OSError, AttributeError) as error:
        return f"what {words[0]} made does not load: {error}"
    return None if loaded == checksum else f"what {words[0]} made is not this source"
