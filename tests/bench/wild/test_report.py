"""Tables of made-up scores, and one program from its recipe to its score."""

from __future__ import annotations

import json
from pathlib import Path

from bench.wild import report, runner
from bench.wild.mutants import PREFIX
from bench.wild.recipe import EXAMPLE, Recipe
from bench.wild.report import Results
from bench.wild.runner import Case
from bench.wild.scoring import Score

GOOD = Score(EXAMPLE, "fault", noticed=True, named=True, placed=True, findings=["clip-before-unscale"], unchanged=True)
MISSED = Score(EXAMPLE, "fault", wrong=["some: wrong"], unchanged=True)
DISTURBED = Score(EXAMPLE, "twin", findings=["run-lost"], pages=["run-lost"], unchanged=False)
DISCARDED = Score(EXAMPLE, f"{PREFIX}no-eps", discarded="its numbers are those of the twin")
RESULTS = Results([GOOD, MISSED, DISTURBED, DISCARDED], 3, False, 0.5)


def test_the_main_table_counts_what_was_found() -> None:
    _, broken, pages, tickets, wrong, unchanged = report.summary(RESULTS)
    assert ("1 of 2 (50 %)", "1 of 2 (50 %)", "1 of 1 (100 %)", "1", "2") == broken[1:]
    assert ["1 of 1 (100 %)", "0 of 1 (0 %)", "0", "2 of 3 (67 %)"] == [
        row[1] for row in (pages, tickets, wrong, unchanged)
    ]


def test_each_miss_and_alarm_has_an_id_to_run_again() -> None:
    assert [f"`{EXAMPLE}` fault: nothing; not noticed"] == report.misses(RESULTS)
    assert [f"`{EXAMPLE}` twin: run-lost"] == report.false_alarms(RESULTS)
    assert [f"`{EXAMPLE}` fault: some: wrong"] == report.wrong_statements(RESULTS)
    assert [f"`{EXAMPLE}` twin: other weights"] == report.troubles(RESULTS)


def test_the_document_has_all_tables_and_the_discarded_programs(tmp_path: Path) -> None:
    report.write(RESULTS, tmp_path, "make wild")
    text = (tmp_path / "wild.md").read_text()
    for heading in ("By fault", "By spelling", "By style", "By attachment", "By time course", "Misses", "Discarded"):
        assert f"## {heading}\n" in text
    assert "its numbers are those of the twin" in text
    assert 4 == len(json.loads((tmp_path / "wild.json").read_text())["scores"])


def test_a_program_is_recorded_watched_and_scored(tmp_path: Path) -> None:
    recipe = Recipe.parse("loss-not-scaled/discarded/constant/script/mlp/sgd/fp16/watch/size/1")
    score = runner.run(Case(recipe, "fault"), tmp_path / "case")
    assert ("", "") == (score.discarded, score.trouble)
    assert score.unchanged
    assert score.named
    assert not (tmp_path / "case").exists()
