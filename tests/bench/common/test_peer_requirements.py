"""The packages to compare with can be installed together with everything else."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_no_package_is_pinned_twice() -> None:
    """pip resolves bench/requirements.txt under constraints.txt: two versions of one package cannot be installed."""
    pinned = [
        {name.lower() for name in re.findall(r"^([\w.-]+)==", (ROOT / file).read_text(), re.MULTILINE)}
        for file in ("constraints.txt", "bench/requirements.txt")
    ]
    assert all(pinned)
    assert set() == pinned[0] & pinned[1]
