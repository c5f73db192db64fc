"""docs/faq.md: its numbers are those of torch and of the code, and it asks before it answers."""

from __future__ import annotations

import re

import pytest
import torch

from ammeter.environment.settings import DEFAULT_BUDGET
from ammeter.journal.size_cap import CAP_BYTES
from ammeter.verdicts.loss_scale import overflow_storm
from tests.house import tree

TEXT = " ".join((tree.ROOT / "docs" / "faq.md").read_text().split())
SCALER = torch.amp.GradScaler("cpu")


@pytest.mark.parametrize(
    "words",
    [
        f"after {SCALER.get_growth_interval()} good steps in a row it doubles",
        f"halves the scale; after {SCALER.get_growth_interval()}",
        f"about one in {SCALER.get_growth_interval()} steps",
        f"gradients that are {SCALER._init_scale:.0f} times their size",
        f"{overflow_storm.MIN_SKIPS} skips within {overflow_storm.WINDOW_STEPS} steps",
        f"Readings may use {DEFAULT_BUDGET:.0%} of the step time".replace("%", " %"),
        f"At most {CAP_BYTES >> 20} MiB per rank and attempt",
        f"a largest number of {torch.finfo(torch.float16).max:.0f}",
    ],
)
def test_a_number_of_the_answers_is_that_of_the_code(words: str) -> None:
    assert words in TEXT


def test_the_backoff_and_the_growth_of_the_answers_are_those_of_torch() -> None:
    assert (0.5, 2.0) == (SCALER.get_backoff_factor(), SCALER.get_growth_factor())


def test_below_the_scale_of_the_answers_an_inverse_is_infinite() -> None:
    assert "Below 2^-128 its inverse is infinite in float32" in TEXT
    assert torch.tensor(2.0**-127).reciprocal().isfinite()
    assert torch.tensor(2.0**-129).reciprocal().isinf()


def test_every_question_ends_with_a_mark_or_is_a_statement_of_the_reader() -> None:
    questions = re.findall(r"^\*\*(.+?)\*\*", (tree.ROOT / "docs" / "faq.md").read_text(), re.MULTILINE | re.DOTALL)
    assert 20 <= len(questions)
    assert [] == [question for question in questions if question[-1] not in "?."]
