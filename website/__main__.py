"""Builds the site of the documents in build/site/html: python -m website

Pages come from docs/, README.md, the runbooks, the changelog and the results of benchmarks. The site needs no network.
Any web server can serve it; as files it can be read too, without the search.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from website.navigation import navigation
from website.pages import ROOT, pages

HERE = Path(__file__).resolve().parent
FOLDER = ROOT / "build" / "site"


def main(folder: Path) -> int:
    """Replaces the folder by the site and what it is made of. Returns MkDocs' exit code, which is 1 for any warning."""
    write_sources(folder)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"]
    command += ["--config-file", str(folder / "mkdocs.yml"), "--site-dir", str(folder / "html")]
    done = subprocess.run(command, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    if done.returncode == 0:
        print(f"To read the site: python -m http.server --bind 127.0.0.1 --directory {folder / 'html'}")
    return done.returncode


def write_sources(folder: Path) -> None:
    """Writes what MkDocs reads: the pages, the settings and the theme."""
    shutil.rmtree(folder, ignore_errors=True)
    content = pages()
    for name, data in content.items():
        path = folder / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    shutil.copytree(HERE / "theme", folder / "theme")
    settings = (HERE / "mkdocs.yml").read_text(encoding="utf-8")
    added = {"docs_dir": "docs", "nav": navigation(content)}
    (folder / "mkdocs.yml").write_text(settings + yaml.safe_dump(added, sort_keys=False), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(FOLDER))
