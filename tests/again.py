"""Runs the tests that failed beside others once more, one after the other.

`make test` runs this when some tests failed. Most tests start processes, browsers and databases, of which a machine
with two cores then has dozens: a deadline may pass there that a test keeps when it is alone. Its first failure remains
in the output, and the last line names it, because a test that fails only beside others may also show a race.
Where tests of more than MAX_FILES files failed, something is broken and nothing is run again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FAILED = Path(".pytest_cache", "v", "cache", "lastfailed")
"""Where pytest keeps the tests that failed, below its root folder."""

MAX_FILES = 3


def main(root: Path = ROOT) -> int:
    """Returns 0 if all of them pass now."""
    names = list(json.loads((root / FAILED).read_text())) if (root / FAILED).exists() else []
    files = {name.split("::")[0] for name in names}
    if not names or len(files) > MAX_FILES:
        return 1
    print(f"running again, alone, what failed: {', '.join(sorted(files))}", flush=True)
    command = [sys.executable, "-m", "pytest", "--last-failed", "--last-failed-no-failures", "none"]
    if subprocess.run(command, cwd=root, check=False).returncode:
        return 1
    listed = ", ".join(names[:MAX_FILES]) + (f" and {len(names) - MAX_FILES} more" if len(names) > MAX_FILES else "")
    print(f"failed beside other tests, and passed alone: {listed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
