"""The tables of the zoo."""

from __future__ import annotations

import msgspec

from bench.zoo import report
from bench.zoo.report import Results
from tests.bench.zoo.scores import CASE, GOOD, finding, results_of, score_fault, sound


def test_the_tables_list_each_miss_with_its_run() -> None:
    broken = [score_fault(*GOOD), score_fault(finding("lost-updates")), score_fault()]
    text = report.markdown(results_of(broken, [sound("sdpa-math"), sound()]), "make zoo")
    name = "scale-collapse@20 gpt fp16 adamw seed 0"
    assert f"- {name}: `lost-updates` was named first; it pointed at nothing" in text
    assert f"- {name}: nothing was found" in text
    assert "- compiled bf16 seed 0: sdpa-math" in text
    assert "| ammeter | 2 of 3 (66.7 %) | 1 of 3 (33.3 %) | 1 of 3 (33.3 %) | 1 of 2 (50.0 %) |" in text
    assert "| broken runs in which something is found | 2 of 3 (66.7 %) | 100 % | **missed** |" in text


def test_the_delay_with_the_default_budget_stands_beside_that_with_all_readings() -> None:
    broken = [score_fault(*GOOD), score_fault(finding("scale-collapse", 24, module="blocks.1.mlp"))]
    frugal = [
        score_fault(finding("scale-collapse", 220), case=msgspec.structs.replace(CASE, frugal=True)),
        score_fault(),
    ]
    text = report.at_default_budget(Results(broken, [], [], 1.0, frugal))
    assert ("`scale-collapse`", "1 of 2", "200, 200", "2.5, 4") == text[1][:4]
