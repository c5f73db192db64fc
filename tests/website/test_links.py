from __future__ import annotations

import pytest

from website.links import resolved

PLACES = {
    "README.md": "index.md",
    "docs/report.md": "report.md",
    "docs/recipes/ddp.md": "recipes/ddp.md",
    "docs/pictures/run.png": "pictures/run.png",
    "alerts/runbooks/run-lost.md": "runbooks/run-lost.md",
}


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("README.md", "[report](docs/report.md#gate)", "[report](report.md#gate)"),
        ("docs/report.md", "[readme](../README.md)", "[readme](index.md)"),
        ("docs/recipes/ddp.md", "[report](../report.md)", "[report](../report.md)"),
        ("docs/report.md", "[lost](../alerts/runbooks/run-lost.md)", "[lost](runbooks/run-lost.md)"),
        ("alerts/runbooks/run-lost.md", "[lost](/runbooks/run-lost)", "[lost](run-lost.md)"),
        ("docs/recipes/ddp.md", "![a run](/docs/pictures/run.png)", "![a run](../pictures/run.png)"),
        ("docs/report.md", "[`report`\nof a run](../README.md)", "[`report`\nof a run](index.md)"),
    ],
)
def test_a_link_to_a_page_leads_to_its_place_in_the_site(source: str, text: str, expected: str) -> None:
    assert expected == resolved(text, source, PLACES)


@pytest.mark.parametrize("text", ["[elsewhere](https://example.org/a.md)", "[here](#part)", "[mail](mailto:a@b.org)"])
def test_other_links_stay(text: str) -> None:
    assert text == resolved(text, "docs/report.md", PLACES)


def test_a_link_to_a_file_that_is_no_page_becomes_its_path() -> None:
    assert "`trainer/train.py`" == resolved("[trainer/train.py](../trainer/train.py)", "docs/report.md", PLACES)
    assert "`trainer/train.py`" == resolved("[`train.py`](../trainer/train.py)", "docs/report.md", PLACES)
    assert "the tests (`tests/x.py`)" == resolved("[the tests](../tests/x.py)", "docs/report.md", PLACES)


def test_code_stays_as_it_is() -> None:
    text = "`[a](b.md)`\n\n```python\nrows[0](../README.md)\n```\n"
    assert text == resolved(text, "docs/report.md", PLACES)
