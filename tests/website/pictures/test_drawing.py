from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from website.pictures.drawing import MAX_POINTS, picture
from website.pictures.training import Curve, Run


def drawn(**changes: object) -> str:
    values: dict[str, object] = {
        "verdict": "scale-collapse",
        "title": "Loss scale collapsed",
        "first_step": 20,
        "opened_step": 24,
        "panels": {"loss": [curve(range(50))]},
        "skipped": [],
    }
    return picture(Run(**(values | changes)))  # type: ignore[arg-type]


def curve(values: range | list[float], label: str = "") -> Curve:
    return Curve(label, list(range(len(values))), [float(value) for value in values])


def lines(text: str) -> list[str]:
    return re.findall(r'<path class="l \w" d="([^"]*)"', text)


def test_a_picture_is_xml_and_marks_both_steps() -> None:
    text = drawn()
    assert "svg" == ElementTree.fromstring(text).tag.rpartition("}")[2]
    marks = {kind: float(x) for kind, x in re.findall(r'<path class="([mo])" d="M([\d.]+) ', text)}
    assert 66 < marks["m"] < marks["o"] < 624


def test_hostile_names_are_text() -> None:
    text = drawn(title='<script>alert(1)</script>&"', panels={"<b>": [curve(range(3), "<i>")]})
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(text).iter()}
    assert not tags & {"script", "b", "i"}
    assert "&lt;script&gt;" in text


def test_what_is_not_finite_is_marked_and_no_part_of_a_line() -> None:
    text = drawn(panels={"loss": [curve([1.0, 2.0, math.nan, math.inf, 3.0])]})
    (line,) = lines(text)
    assert 2 == line.count("M")
    (marks,) = re.findall(r'<path class="r" d="([^"]*)"', text)
    assert 2 == marks.count("M")
    assert "nan" not in text.lower()


def test_a_panel_without_a_number_has_no_axis() -> None:
    text = drawn(panels={"loss": [curve([math.nan, math.nan])]})
    assert [] == lines(text)
    assert [] == re.findall(r'text-anchor="end">[\d.]+</text>\n<path', text.replace('text-anchor="end">1</text>', ""))


def test_a_constant_is_a_line_in_the_middle_with_one_number() -> None:
    text = drawn(panels={"scale": [curve([65536.0] * 20)]})
    assert 1 == text.count("2^16")
    assert 1 == len(set(re.findall(r" (\d+)", lines(text)[0])))


@pytest.mark.parametrize("count", [10, MAX_POINTS, 100_000])
def test_a_long_run_keeps_its_extremes_and_is_small(count: int) -> None:
    values = [0.0] * count
    values[count // 2] = 1000.0
    text = drawn(panels={name: [curve(values), curve(values, "baseline")] for name in ("loss", "grad_norm", "a", "b")})
    assert 12_000 > len(text)
    heights = [int(height) for height in re.findall(r"[ML]\d+ (\d+)", lines(text)[0])]
    assert min(heights) < max(heights) - 50


def test_several_curves_are_named_in_their_colours() -> None:
    text = drawn(panels={"loss": [curve(range(5), "this run"), curve(range(5), "baseline")]})
    assert ["a", "b"] == re.findall(r'<tspan class="t(\w)">', text)


def test_skipped_steps_are_counted_at_the_scale() -> None:
    text = drawn(panels={"scale": [curve([4.0, 2.0, 1.0])]}, skipped=[1, 2])
    assert "2 skipped (ticks)" in text
