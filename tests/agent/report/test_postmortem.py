"""`ammeter report --postmortem` writes the document that a review begins with, of real runs and of hostile ones."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from markdown_it import MarkdownIt

from ammeter.__main__ import main
from ammeter.recording.schedule import budget as schedule
from tests.agent.report.reporting import written
from tests.agent.stream_builder import Stream, warm
from tests.agent.streams import BROKEN
from tests.agent.training import watching

Output = pytest.CaptureFixture[str]
SECTIONS = [
    "Findings",
    "Timeline",
    "Loss scale",
    "Around the first bad step",
    "Last good checkpoint",
    "Environment",
    "Missing data",
    "Checklist",
]


def document(folder: Path, output: Output) -> str:
    output.readouterr()
    main(["report", str(folder), "--postmortem"])
    return output.readouterr().out


def section(text: str, name: str) -> str:
    return re.split(r"^## ", text.partition(f"\n## {name}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


class Gate(torch.nn.Module):
    """Hands on what it gets; broken, its gradient is infinite."""

    broken = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (0 * x).abs().sqrt() if self.broken else x


@pytest.fixture(scope="module")
def broken_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that keeps a checkpoint at step 10 and whose gradients are not finite from step 20 on."""
    folder = tmp_path_factory.mktemp("runs")
    checkpoints = tmp_path_factory.mktemp("kept")
    torch.manual_seed(3)
    gate = Gate()
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), gate, torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    options = {"name": "nightly", "project": "books", "config": {"lr": 1e-3, "data": "shard-7"}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(schedule.PRESETS, "default", lambda budget: (math.inf,) * 4)  # else such short steps are left out
        with watching(folder, model, optimizer, scaler, **options):
            for step in range(40):
                gate.broken = step >= 20
                scaler.scale(model(torch.randn(4, 8)).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                if step == 9:
                    torch.save({"model": model.state_dict(), **state_of(optimizer, scaler)}, checkpoints / "step10.pt")
    return folder


def state_of(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> dict[str, Any]:
    return {"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}


def test_all_that_is_known_of_a_real_run_is_filled_in(broken_run: Path, capsys: Output) -> None:
    text = document(broken_run, capsys)
    assert SECTIONS == re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert text.startswith("# Post-mortem: nightly (books)\n")
    assert "`scale-collapse`" in section(text, "Findings") or "`nonfinite-gradient`" in section(text, "Findings")
    assert "- **Cause.** " in section(text, "Findings")
    assert "- **Fix.** " in section(text, "Findings")
    assert re.search(r"\| 21 to 39 \| down, 19 times \| 1024 \(2\^10\) \|", section(text, "Loss scale"))
    assert re.search(
        r"`/.*kept\d*/step10.pt`, saved at step 10, .* It is complete.", section(text, "Last good checkpoint")
    )
    assert "| config `data` | shard-7 |" in section(text, "Environment")
    assert f"| torch | {torch.__version__} |" in section(text, "Environment")


def test_the_timeline_goes_from_watch_to_goodbye_with_what_was_found_between(broken_run: Path, capsys: Output) -> None:
    lines = section(document(broken_run, capsys), "Timeline").strip().splitlines()[2:]
    times = [line.split("|")[1].strip() for line in lines]
    assert sorted(times) == times
    assert "recording began: rank 0 of 1" in lines[0]
    assert "the process ended (closed)" in lines[-1]
    (skips,) = (at for at, line in enumerate(lines) if "20 steps in a row were skipped, 20 to 39" in line)
    (saved,) = (at for at, line in enumerate(lines) if "step10.pt was saved" in line)
    assert saved < skips
    assert any("found: " in line for line in lines[saved:])


def test_the_rows_around_the_first_bad_step_are_shown(broken_run: Path, capsys: Output) -> None:
    rows = section(document(broken_run, capsys), "Around the first bad step").strip().splitlines()[4:]
    assert [str(step) for step in range(12, 26)] == [row.split("|")[1].strip(" *") for row in rows]
    assert "| **20** |" in rows[8]
    assert "| skipped | 2 tensors not finite, the last of them `0.weight`, `0.bias` |" in rows[8]
    assert "| applied | `" in rows[7]


def test_the_checklist_says_what_is_answered_and_asks_the_rest(broken_run: Path, capsys: Output) -> None:
    lines = section(document(broken_run, capsys), "Checklist").strip().splitlines()[2:]
    assert ["x" in line[:6] for line in lines] == [False, True, True, True, False, False, False, False]
    assert "Resume in float32 from `/" in lines[5]
    assert "Smallest reproduction: one batch, only `0` in float32" in lines[6]


def test_it_goes_into_a_file_where_one_is_given(broken_run: Path, tmp_path: Path, capsys: Output) -> None:
    code = main(["report", str(broken_run), "--postmortem", str(tmp_path / "review.md")])
    assert 3 == code
    assert "" == capsys.readouterr().out
    assert (tmp_path / "review.md").read_text() == document(broken_run, capsys)


def test_a_file_that_cannot_be_written_is_named(broken_run: Path, tmp_path: Path, capsys: Output) -> None:
    assert 2 == main(["report", str(broken_run), "--postmortem", str(tmp_path / "no" / "review.md")])
    assert "no/review.md" in capsys.readouterr().err


@pytest.mark.parametrize("name", BROKEN)
def test_every_broken_run_makes_a_document_whose_tables_are_whole(name: str, tmp_path: Path, capsys: Output) -> None:
    written(BROKEN[name](), tmp_path)
    text = document(tmp_path, capsys)
    assert SECTIONS == re.findall(r"^## (.*)$", text, re.MULTILINE)
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    for table in tables:
        assert 1 == len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}), table


def test_a_healthy_run_says_that_nothing_was_found(tmp_path: Path, capsys: Output) -> None:
    written(warm(30).bye(), tmp_path)
    text = document(tmp_path, capsys)
    assert "**No verdict was reached.**" in text
    assert "No step stands out." in section(text, "Around the first bad step")
    assert "65536 (2^16) throughout." in section(text, "Loss scale")
    assert "No checkpoint was seen." in section(text, "Last good checkpoint")


def test_what_comes_from_a_run_is_no_markup(tmp_path: Path, capsys: Output) -> None:
    stream = Stream().good().event("probe.failed", probe="a|b", error="<script>alert(1)</script>\n# Title")
    written(stream.bye("exception", "[a](javascript:alert(1)) | x"), tmp_path, name="<b>run</b>\n# other")
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(document(tmp_path, capsys))
    assert "<script>" not in html
    assert "<b>" not in html
    assert 'javascript:alert(1)">' not in html
    assert 1 == html.count("<h1>")


def test_what_comes_from_a_run_calls_nobody_where_the_document_is_pasted(tmp_path: Path, capsys: Output) -> None:
    evil = "@everyone @octocat <!channel> <@U1> ![x](https://evil.example) &#64;here ` ~~x~~ \u202e #12\n# Title"
    stream = Stream().good().event("probe.failed", probe=evil, error=evil)
    written(stream.bye("exception", evil), tmp_path, name=evil, project=evil)
    markdown = document(tmp_path, capsys)
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown)
    text = re.sub(r"<code>.*?</code>", "", html)  # where no service looks for anybody
    assert not re.search(r"@\w", text), text
    assert not any(markup in html for markup in ("<!channel>", "<@U1>", "<img", 'href="https://evil'))
    assert "\u202e" not in markdown
    assert 1 == html.count("<h1>")
