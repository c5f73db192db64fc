"""Programs of others: they end as without Ammeter, and what cannot be repeated is not compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.common.program_end import End
from bench.wild import programs
from bench.wild.programs import CHANGED, NOT_REPEATABLE, SAME, Outcome

TRAINS = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
def train():
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(30):
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4)).square().mean()
        loss.backward()
        optimizer.step()
    print("loss", loss.item(), __file__)
train()
raise SystemExit(4)
"""

END = End(0, "loss 1", {"0": "abc"})


def outcome(watched: End = END, again: End = END, **finding: str) -> Outcome:
    return Outcome("a/train.py", END, again, watched, [dict(finding)] if finding else [])


def test_a_program_of_others_ends_with_the_same_weights_output_and_exit_code(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "train.py").write_text(TRAINS)
    (tmp_path / "no_training.py").write_text("print(1)")
    (result,) = programs.run_all(tmp_path, 1)
    assert (4, 4) == (result.bare.code, result.watched.code)
    assert result.bare.weights
    assert "loss" in result.bare.output
    assert [SAME] * 3 == [result.compared(part) for part in ("code", "output", "weights")]
    assert isinstance(result.findings, list)
    assert ["one/train.py"] == [row[0] for row in programs.table([result])[1:]]


@pytest.mark.parametrize(
    ("watched", "part"),
    [(End(1, "loss 1", {"0": "abc"}), "code"), (End(0, "", {"0": "abc"}), "output"), (End(0, "loss 1", {}), "weights")],
)
def test_a_run_that_ends_otherwise_is_changed(watched: End, part: str) -> None:
    assert CHANGED == outcome(watched).compared(part)
    assert outcome(watched).is_changed
    assert "1 changed" in programs.summary([outcome(watched)])
    assert CHANGED in "".join(programs.table([outcome(watched)])[1])


def test_numbers_that_differ_without_ammeter_prove_nothing() -> None:
    other = End(0, "loss 2", {"0": "abd"})
    assert NOT_REPEATABLE == outcome(other, again=other).compared("weights")
    assert not outcome(other, again=other).is_changed


def test_findings_are_counted_by_severity_and_printed() -> None:
    found = outcome(severity="ticket", verdict="lost-updates", title="Updates are lost", cause="")
    assert "1 programs: 0 changed by watching, 0 with a page, 1 with a ticket" == programs.summary([found])
    assert ["a/train.py: ticket lost-updates: Updates are lost"] == programs.details([found])


def test_a_folder_without_scripts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no script that uses torch"):
        programs.scripts(tmp_path)
