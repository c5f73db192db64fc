"""Renders a board and its data with Grafana's packages in headless Chromium, and checks boards against their types.

dashboards/render has the list of packages with exact versions; `npm ci` installs them there.
"""

from __future__ import annotations

import base64
import functools
import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.server import browsing

RENDER = Path(__file__).parent / "render"
PACKAGES = RENDER / "node_modules"

WIDTH, HEAD, ROW = 1400, 88, 38
"""Pixels: width of the page, height of its title, and of a row of Grafana's grid with the space to the next."""

QUALITY = 70
"""Of WebP: a long board has less than 300 kB."""

SECONDS = 60
"""How long a page may take."""

BUNDLE = ("--bundle", '--define:process.env.NODE_ENV="production"', "--loader:.ttf=empty")


FONTS = {"Inter-Regular.woff2": 400, "Inter-Medium.woff2": 500}
"""Files where Grafana has its fonts, and their weights."""


Mode = Literal["light", "dark"]


class NotDrawn(Exception):
    """The page has an error; its text is what the page says of it."""


def is_installed() -> bool:
    """Whether the packages are there, in the versions of the lock file."""
    wanted, there = RENDER / "package-lock.json", PACKAGES / ".package-lock.json"
    return there.exists() and _versions(there).items() <= _versions(wanted).items()


def install() -> None:
    """Installs the packages of the lock file, unless they are there."""
    if not is_installed():
        subprocess.run(["npm", "ci", "--loglevel", "error"], cwd=RENDER, check=True, timeout=900)


def _versions(lock: Path) -> dict[str, str]:
    packages = json.loads(lock.read_text(encoding="utf-8"))["packages"]
    return {name: package["version"] for name, package in packages.items() if "version" in package}


def mistakes(boards: Mapping[str, str]) -> str:
    """Checks the JSON of boards against Grafana's types.

    Returns:
        What the compiler says; empty if every board is right.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, text in boards.items():
            begin = f'import type {{ Board }} from "{RENDER / "src" / "checked"}";\nexport default '
            (folder / f"{name}.ts").write_text(f"{begin}{text.strip()} satisfies Board;\n", encoding="utf-8")
        config = {"extends": str(RENDER / "tsconfig.json"), "include": ["*.ts"]}
        (folder / "tsconfig.json").write_text(json.dumps(config), encoding="utf-8")
        command = [str(PACKAGES / ".bin" / "tsc"), "--project", str(folder), "--pretty", "false"]
        return subprocess.run(command, capture_output=True, text=True, timeout=300).stdout


def bundled(folder: Path) -> None:
    """Puts the page with everything that it loads into the folder."""
    program = PACKAGES / ".bin" / "esbuild"
    command = [str(program), "src/main.tsx", *BUNDLE, f"--outfile={folder / 'main.js'}", "--log-level=error"]
    subprocess.run(command, cwd=RENDER, check=True, timeout=120)
    shutil.copy(RENDER / "src" / "page.html", folder / "index.html")
    fonts = folder / "public" / "fonts" / "inter"
    fonts.mkdir(parents=True)
    for name, weight in FONTS.items():
        shutil.copy(PACKAGES / "@fontsource" / "inter" / "files" / f"inter-latin-{weight}-normal.woff2", fonts / name)
    (folder / "public" / "build").symlink_to(PACKAGES / "@grafana" / "ui" / "dist" / "public")


class Renderer:
    """A browser and the page; open while pictures are taken."""

    def __init__(self, folder: Path, url: str, browser: webdriver.Chrome) -> None:
        self._folder, self._url, self._browser = folder, url, browser

    def draw(self, board: Mapping[str, Any], picture: Path | None = None, mode: Mode = "light") -> dict[str, str]:
        """Draws the board in one of Grafana's themes, and writes the picture if asked to.

        Returns:
            What each panel shows as text, by its title.

        Raises:
            NotDrawn: A component failed.
        """
        page = {**board, "mode": mode, "width": WIDTH, "head": HEAD, "row": ROW}
        (self._folder / "board.json").write_text(json.dumps(page), encoding="utf-8")
        height = HEAD + ROW * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
        with browsing.seen_as(self._browser, mode, WIDTH, height):  # tables draw the rows inside the window only
            return self._drawn(picture)

    def _drawn(self, picture: Path | None) -> dict[str, str]:
        self._browser.get(self._url)
        page = self._browser.find_element(By.TAG_NAME, "html")
        WebDriverWait(self._browser, SECONDS).until(
            lambda _: page.get_attribute("data-drawn") or page.get_attribute("data-error")
        )
        if error := page.get_attribute("data-error"):
            raise NotDrawn(error)
        if picture:
            shot = self._browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
            picture.write_bytes(base64.b64decode(shot["data"]))
        panels = self._browser.find_elements(By.CSS_SELECTOR, "[data-panel]")
        return {str(panel.get_attribute("data-panel")): panel.text for panel in panels}


@contextmanager
def renderer() -> Iterator[Renderer]:
    """Opens the browser and serves the page on loopback."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        bundled(folder)
        handler = functools.partial(_Quiet, directory=place)
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with browsing.chromium() as browser:
                yield Renderer(folder, f"http://127.0.0.1:{server.server_port}/index.html", browser)
        finally:
            server.shutdown()
            server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""
