"""Tables of made-up scores, and one program from its recipe to its score."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from bench.wild import covering, report, runner
from bench.wild.__main__ import main
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
    _, broken, pages, tickets, wrong, unchanged, not_judged = report.summary(RESULTS)
    assert ("1 of 2 (50 %)", "1 of 2 (50 %)", "1 of 1 (100 %)", "1", "2") == broken[1:]
    assert ["1 of 1 (100 %)", "0 of 1 (0 %)", "0", "2 of 3 (67 %)", "0 of 1 (0 %)"] == [
        row[1] for row in (pages, tickets, wrong, unchanged, not_judged)
    ]


def test_the_ablation_counts_what_is_still_found_without_a_hook() -> None:
    gone = msgspec.structs.replace(GOOD, without="backward", noticed=False, named=False, findings=[])
    kept = msgspec.structs.replace(GOOD, without="backward")
    results = replace(RESULTS, ablated=[gone, kept, msgspec.structs.replace(kept, without="autocast")])
    _, autocast, backward = report.ablation(results)
    assert ("autocast", "1 of 1 (100 %)", "1 of 1 (100 %)", "1") == autocast
    assert ("backward", "1 of 2 (50 %)", "1 of 2 (50 %)", "2") == backward
    assert [f"`{EXAMPLE}` fault without backward: nothing"] == report.lost(results)
    text = report.markdown(results, "make wild")
    assert "## By hook that is off\n" in text
    assert "## Found with all hooks alone\n" in text
    assert "2" == report.summary(results)[1][-1]


def test_the_document_of_an_ablation_has_what_is_lost_and_the_hooks_that_no_program_uses(tmp_path: Path) -> None:
    gone = msgspec.structs.replace(GOOD, without="backward", noticed=False, named=False, findings=[])
    wrong = msgspec.structs.replace(GOOD, without="autocast", wrong=["some: wrong"], unchanged=False)
    report.write_ablation(replace(RESULTS, ablated=[gone, wrong]), tmp_path, "make wild")
    text = (tmp_path / "ablation.md").read_text()
    assert "With all hooks 1 of 2 broken programs are noticed.\n" in text
    assert "\n1 of 2 (50 %) are still noticed.\n" in text
    assert "| backward | 0 of 1 (0 %) | 0 of 1 (0 %) | 1 |\n" in text
    assert f"- `{EXAMPLE}` fault without backward: nothing\n" in text
    assert f"- `{EXAMPLE}` fault without autocast: some: wrong\n" in text
    assert "## Other weights without a hook\n\n- " in text
    (unused,) = [line for line in text.splitlines() if line.startswith("No program of the sample uses ")]
    assert "scaler.update" in unused
    assert "backward" not in unused


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
    written = json.loads((tmp_path / "wild.json").read_text())
    assert 4 == len(written["scores"])
    assert ([1, 2], [1, 1], [2, 3]) == tuple(written["figures"][name] for name in ("noticed", "pages", "unchanged"))


def test_a_run_that_stops_early_writes_what_it_has(tmp_path: Path) -> None:
    arguments = ["--sample", "1", "--healthy", "1", "--seconds", "0", "--write", str(tmp_path)]
    assert 0 == main(arguments)
    assert [] == json.loads((tmp_path / "wild.json").read_text())["scores"]
    assert "## Misses\n\nNone." in (tmp_path / "wild.md").read_text()


@pytest.mark.parametrize("option", ["--develop", "--only=no-gradients", "--without=backward"])
def test_the_committed_results_are_of_fresh_draws_of_everything(option: str) -> None:
    with pytest.raises(SystemExit):
        main(["--write", option, *([] if option == "--develop" else ["--fresh"])])


def test_further_healthy_programs_are_twins_and_look_alikes() -> None:
    recipes = covering.chosen(0, 30, lambda recipe: not recipe.held_out)
    assert {"twin", "alike"} == {case.kind for case in runner.healthy_cases(recipes)}
    assert recipes == [case.recipe for case in runner.healthy_cases(recipes)]


def test_a_program_is_recorded_watched_and_scored(tmp_path: Path) -> None:
    recipe = Recipe.parse("loss-not-scaled/discarded/constant/script/mlp/sgd/fp16/watch/size/1")
    score = runner.run(Case(recipe, "fault"), tmp_path / "case")
    assert ("", "") == (score.discarded, score.trouble)
    assert score.unchanged
    assert score.named
    assert not (tmp_path / "case").exists()


def test_a_program_that_ends_before_its_late_watch_is_discarded(tmp_path: Path) -> None:
    recipe = Recipe.parse("loss-not-scaled/raw/constant/script/mlp/sgd/fp16/late/size/1")
    score = runner.run(Case(recipe, "fault"), tmp_path / "case")
    assert score.discarded == "it ended after 0 steps, before its watch()"
