"""The built site: no warning, nothing from elsewhere, every page in the navigation, every verdict with a picture."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from ammeter.verdicts import ALL
from tests.house import tree
from tests.house.test_documents import gpu_only
from tests.parts import library
from website import __main__ as website
from website.navigation import navigation, paths
from website.pages import pages

library("mkdocs")
library("material")

LOADING = {
    "script": "src",
    "img": "src",
    "link": "href",
    "iframe": "src",
    "source": "src",
    "audio": "src",
    "video": "src",
}
"""Element -> the attribute that makes a browser load something."""

PASSIVE = {"canonical", "next", "prev"}
"""Relations of a link element that load nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert 0 == website.main(folder), "MkDocs has warnings; run: make docs"
    return folder / "html"


class Loaded(HTMLParser):
    """What a page loads."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        if tag in LOADING and values.get("rel") not in PASSIVE:
            self.found += filter(None, [values.get(LOADING[tag])])


def test_every_document_is_a_page(site: Path) -> None:
    built = {path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")}
    documents = {path.stem for path in (tree.ROOT / "docs").glob("*.md")}
    assert 20 <= len(documents)
    assert documents | {f"runbooks/{verdict.id}" for verdict in ALL} | {"index", "recipes/ddp", "changelog"} <= built


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loaded = {(page.name, target) for page in site.rglob("*.html") for target in Loaded(page).found}
    assert {"css", "js", "svg", "png"} <= {target.rpartition(".")[2] for _, target in loaded}
    assert [] == [entry for entry in loaded if re.match(r"(?:\w+:)?//", entry[1])]
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert [] == [
        found for style in styles for found in re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)]*", style)
    ]


def test_everything_that_a_page_loads_is_there(site: Path) -> None:
    missing = [
        (page.name, target)
        for page in site.rglob("*.html")
        if page.name != "404.html"  # its addresses are those of a server
        for target in Loaded(page).found
        if not (page.parent / target).exists()
    ]
    assert [] == missing


def test_the_runbook_of_each_verdict_shows_its_picture(site: Path) -> None:
    shown = {verdict.id for verdict in ALL if _picture(site / "runbooks" / f"{verdict.id}.html", verdict.id)}
    assert {verdict.id for verdict in ALL} - gpu_only() == shown


def _picture(page: Path, verdict: str) -> bool:
    return f"../pictures/verdicts/{verdict}.svg" in Loaded(page).found


def test_the_navigation_has_each_page_once() -> None:
    content = pages()
    named = list(paths(navigation(content)))
    assert sorted(page for page in content if page.endswith(".md")) == sorted(named)


def test_a_page_that_no_section_names_is_in_the_last_one() -> None:
    content = {**pages(), "new-page.md": b"# New"}
    assert {"More": ["new-page.md"]} == navigation(content)[-1]


@pytest.mark.parametrize(
    "broken", ["[gone](gone.md)", "[gone](report.md#gone)", "[gone](/gone.md)"], ids=["page", "anchor", "absolute"]
)
def test_a_broken_link_fails_the_build(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"index.md": f"# A\n\n{broken}\n".encode(), "report.md": b"# B\n"}
    monkeypatch.setattr(website, "pages", lambda: few)
    monkeypatch.setattr(website, "navigation", lambda _: list(few))
    assert 1 == website.main(tmp_path)


def test_no_picture_of_the_documents_needs_a_program_that_draws_it() -> None:
    assert [] == [name for name, content in pages().items() if b"```mermaid" in content]


def test_the_site_has_no_settings_beside_those_of_the_file() -> None:
    text = (tree.ROOT / "website" / "mkdocs.yml").read_text()
    settings = yaml.load(re.sub(r"!!python/\S+", "", text), yaml.SafeLoader)
    assert (True, False) == (settings["strict"], settings["theme"]["font"])
    assert "warn" == settings["validation"]["links"]["anchors"]
