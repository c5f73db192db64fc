"""Draws a picture of each verdict: python -m website.pictures [ID ...]

Trains the reference program with the verdict's fault, as the zoo in bench/ does, and draws what the run recorded with
the step that the finding names. Pictures are in docs/pictures/verdicts, and docs/verdict-pictures.md shows them. All of
them take a few minutes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # models are tiny: threads that wait for each other cost more
from website.pages import ROOT
from website.pictures.drawing import picture
from website.pictures.page import FOLDER, PAGE, page
from website.pictures.training import cases, recorded


def main(verdicts: Sequence[str]) -> int:
    """Returns the number of verdicts whose run has no finding of their name."""
    missed = 0
    FOLDER.mkdir(exist_ok=True)
    for name, case in cases().items():
        if verdicts and name not in verdicts:
            continue
        with tempfile.TemporaryDirectory(prefix="picture-") as folder:
            os.chmod(folder, 0o755)  # noqa: S103 - a fault lets everybody read its checkpoint
            run = recorded(case, Path(folder))
        if run is None:
            missed += 1
            print(f"{name}: the run has no such finding; its picture is unchanged", file=sys.stderr)
            continue
        (FOLDER / f"{name}.svg").write_text(picture(run), encoding="utf-8")
        print(f"{name}: {run.title}", flush=True)
    (ROOT / PAGE).write_text(page(), encoding="utf-8")
    return missed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
