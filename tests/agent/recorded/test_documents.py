"""docs/notebooks.md and the notebook of examples/ work as they are written, in a real kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.agent.kernel import executed
from tests.agent.report.notebook.test_report import Elements
from tests.house import tree
from tests.parts import library

pytestmark = pytest.mark.long

NOTEBOOK = tree.ROOT / "examples" / "notebook.ipynb"


def shown(cell: Any) -> dict[str, str]:
    """What a cell shows, by kind; fails for a cell that prints to stderr."""
    assert [] == [output.text for output in cell.outputs if output.get("name") == "stderr"]
    (output,) = (output for output in cell.outputs if output.output_type == "execute_result")
    data: dict[str, str] = output.data
    return data


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    notebook = library("nbformat").read(NOTEBOOK, as_version=4)
    code: list[Any] = [
        cell for cell in executed(notebook, tmp_path_factory.mktemp("kernel")).cells if cell.cell_type == "code"
    ]
    return code


def test_the_notebook_is_committed_without_outputs() -> None:
    notebook = library("nbformat").read(NOTEBOOK, as_version=4)
    library("nbformat").validate(notebook)
    assert [] == [cell.source for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]


def test_the_first_run_shows_its_finding_and_the_second_none(cells: list[Any]) -> None:
    first, second = shown(cells[2]), shown(cells[3])
    page = Elements(first["text/html"])
    assert "loss-in-half" in page.text
    assert {"svg", "polyline"} <= page.names
    assert "loss-in-half" in first["text/plain"]
    assert "No verdict was reached" in " ".join(second["text/plain"].split())
    assert "No verdict was reached" in Elements(second["text/html"]).text


def test_the_frames_are_those_of_pandas(cells: list[Any]) -> None:
    library("pandas")
    assert "199" in shown(cells[4])["text/plain"]
    assert "0.weight" in shown(cells[5])["text/plain"]


def test_the_handle_shows_the_run(cells: list[Any]) -> None:
    page = Elements(shown(cells[6])["text/html"])
    assert "loss in float32 · default" in page.text
    assert "ended (closed)" in page.text


def test_every_program_of_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library("pandas"), library("polars")
    monkeypatch.setenv("AMMETER_DIR", str(tmp_path))
    names: dict[str, Any] = {}
    for block in tree.fenced(tree.ROOT / "docs" / "notebooks.md", "python"):
        exec(compile(block, "notebooks.md", "exec"), names)
    try:
        assert 200 == len(names["steps"])
        assert 4 == len(names["worst"])
    finally:
        names["run"].close()
