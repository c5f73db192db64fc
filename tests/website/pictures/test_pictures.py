"""The committed pictures: one of each verdict that a CPU can show, small, inert, and shown by the page."""

from __future__ import annotations

import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ammeter.verdicts import ALL
from tests.house import tree
from tests.house.test_documents import gpu_only
from website.pictures.drawing import picture
from website.pictures.page import FOLDER, PAGE, page, title_in
from website.pictures.training import MEASURES, cases, recorded

PICTURES = sorted(FOLDER.glob("*.svg"))
MAX_BYTES = 10_000


def test_each_verdict_that_a_cpu_can_show_has_a_picture() -> None:
    assert {verdict.id for verdict in ALL} - gpu_only() == {path.stem for path in PICTURES}
    assert {path.stem for path in PICTURES} == set(cases())


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_small_and_loads_and_runs_nothing(path: Path) -> None:
    assert MAX_BYTES > path.stat().st_size
    names = {element.tag.rpartition("}")[2] for element in ElementTree.parse(path).iter()}
    assert names <= {"svg", "title", "desc", "style", "text", "tspan", "rect", "path"}
    text = path.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|url\(|@import|href|\bon\w+=", text)


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_shows_a_curve_and_the_place_of_the_finding(path: Path) -> None:
    text = path.read_text()
    assert re.search(r'<path class="[lr]', text)
    assert '<path class="m"' in text
    assert title_in(path)


def test_the_page_has_the_pictures_that_there_are() -> None:
    assert page() == (tree.ROOT / PAGE).read_text(), "run: python -m website.pictures ID"


def test_every_measure_is_of_a_verdict() -> None:
    assert set(MEASURES) <= {verdict.id for verdict in ALL}


def test_a_picture_is_drawn_from_a_run(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    run = recorded(cases()["scale-collapse"], tmp_path)
    assert run is not None
    assert (20, "scale-collapse") == (run.first_step, run.verdict)
    assert {"loss", "scale", "grad_norm"} == set(run.panels)
    (scale,) = run.panels["scale"]
    assert (65536.0, 20) == (scale.values[0], scale.steps[20])
    assert scale.values[-1] < 1e-30
    assert run.skipped[0] == 20
    assert re.sub(r"[\d.e-]+", "#", title_in(FOLDER / "scale-collapse.svg")) == re.sub(r"[\d.e-]+", "#", run.title)
    assert "<svg" in picture(run)
