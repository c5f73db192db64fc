"""Copies the first table of bench/results/*.md into README.md, between <!-- bench:NAME --> and <!-- /bench:NAME -->."""

from __future__ import annotations

import re
import sys
from itertools import dropwhile, takewhile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "bench" / "results"


def main() -> int:
    text = README.read_text(encoding="utf-8")
    for name in re.findall(r"<!-- bench:(\w+) -->", text):
        text = filled(text, name, table(RESULTS / f"{name}.md"))
    README.write_text(text, encoding="utf-8")
    return 0


def table(result: Path) -> str:
    """The first table of a result file. Ends the program where there is none."""
    if not result.is_file():
        sys.exit(f"there is no {result.relative_to(ROOT)}; run: make bench ARGS=--write")
    lines = result.read_text(encoding="utf-8").splitlines()
    rows = takewhile(lambda line: line.startswith("|"), dropwhile(lambda line: not line.startswith("|"), lines))
    return "".join(f"{row}\n" for row in rows)


def filled(text: str, name: str, rows: str) -> str:
    """The text with these rows between the markers of this name."""
    begin, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    pattern = re.compile(rf"({re.escape(begin)}\n).*?({re.escape(end)})", re.DOTALL)
    if not pattern.search(text):
        sys.exit(f"README.md has {begin} and no {end}")
    return pattern.sub(lambda found: f"{found[1]}{rows}{found[2]}", text)


if __name__ == "__main__":
    sys.exit(main())
