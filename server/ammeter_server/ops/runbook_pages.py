"""`ammeter-server runbooks FOLDER`: writes every runbook as a page for another web server."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from ammeter_server.ops.runbooks import TITLES, index, rendered

STYLE = "body{max-width:60rem;margin:2rem auto;padding:0 1rem;font:1rem/1.5 system-ui,sans-serif}pre{overflow:auto}"
PAGE = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    '<meta name="color-scheme" content="light dark">\n'
    "<title>{title} · Ammeter</title>\n<style>" + STYLE.replace("{", "{{").replace("}", "}}") + "</style>\n"
    "</head>\n<body>\n{body}\n</body>\n</html>\n"
)


def write(folder: Path) -> int:
    """Writes NAME/index.html per runbook and an index of all; other files in the folder stay.

    Web servers return NAME/index.html for the address NAME.

    Returns:
        The number of runbooks.
    """
    for name, title in TITLES.items():
        body = str(rendered(name))  # as str: Markup would escape the replacement
        _write(folder / name, title, re.sub(r'href="/runbooks/([\w-]+)"', r'href="../\1/"', body))
    _write(folder, "Runbooks", index("{}/"))
    return len(TITLES)


def _write(folder: Path, title: str, body: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.html").write_text(PAGE.format(title=escape(title), body=body), encoding="utf-8")
