"""Lists the known bugs of kernels that match this machine."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType

from ammeter.doctor.line import Line, ok, warn
from ammeter.verdicts.kernels.known_bugs import KNOWN_BUGS, TABLE_VERSION, Facts, of_machine


def lines(torch: ModuleType) -> Iterator[Line]:
    """Yields one line for each bug of one of the machine's devices, else one that there is none."""
    packages = [name for name in {bug.package for bug in KNOWN_BUGS} if name and _is_installed(name)]
    on = "cuda" if torch.cuda.is_available() else "cpu"
    bugs = {bug.thread: bug for facts in _devices(torch) for bug in of_machine(facts, on, packages)}
    if not bugs:
        yield ok("known bugs", f"none of {len(KNOWN_BUGS)} bugs of kernels matches (table of {TABLE_VERSION})")
    for bug in bugs.values():
        dtypes = f" in {' and '.join(bug.dtypes)}" if bug.dtypes else ""
        yield warn("known bug", f"{bug.condition}: {bug.effect}{dtypes} ({bug.url})", bug.remedy)


def _devices(torch: ModuleType) -> list[Facts]:
    """The facts that decide the kernels, of each GPU, else of the CPU."""
    known = {"torch": str(torch.__version__)}
    if not torch.cuda.is_available():
        return [known]
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    if torch.version.cuda is None:  # ROCm
        return [known | {"device": name} for name in names]
    with suppress(RuntimeError):  # incompatible libraries, which torch reports to the program itself
        known["cudnn"] = str(torch.backends.cudnn.version())
    capabilities = map(torch.cuda.get_device_capability, range(len(names)))
    return [
        known | {"device": name, "capability": f"{major}.{minor}"}
        for name, (major, minor) in zip(names, capabilities, strict=True)
    ]


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False
