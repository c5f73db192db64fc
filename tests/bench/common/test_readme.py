"""The README shows the figure of generated programs beside that of the reference trainer, the lower one first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.common import readme

ZOO = "| detector | noticed |\n|---|---|\n| ammeter | 4 of 5 (80.0 %) |\n"
FIGURES = {"fresh": True, "without": "", "figures": {"noticed": [3, 4]}}
GENERATED = "Faults found in generated programs, of kinds held out from development"


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Result files of the zoo alone."""
    monkeypatch.setattr(readme, "RESULTS", tmp_path)
    (tmp_path / "zoo.md").write_text(ZOO)
    return tmp_path


def write(results: Path, **changed: Any) -> None:
    (results / "wild.json").write_text(json.dumps({**FIGURES, **changed}))


@pytest.mark.parametrize(("noticed", "cell", "row"), [(3, "3 of 4 (75.0 %)", 0), (4, "4 of 4 (100.0 %)", 1)])
def test_the_lower_figure_is_the_first_row(results: Path, noticed: int, cell: str, row: int) -> None:
    write(results, figures={"noticed": [noticed, 4]})
    found = readme.found()
    assert 2 == len(found)
    assert (GENERATED, cell, "wild") == found[row]
    assert ("Injected faults that Ammeter finds", "4 of 5 (80.0 %)", "zoo") == found[1 - row]


@pytest.mark.usefixtures("results")
def test_without_a_result_file_there_is_the_row_of_the_zoo_alone() -> None:
    assert [("Injected faults that Ammeter finds", "4 of 5 (80.0 %)", "zoo")] == readme.found()


@pytest.mark.parametrize("changed", [{"fresh": False}, {"without": "backward"}])
def test_figures_of_programs_known_in_development_are_refused(results: Path, changed: dict[str, Any]) -> None:
    write(results, **changed)
    with pytest.raises(SystemExit, match="known in development"):
        readme.found()
