"""run.report(): the text of `ammeter report`, and HTML that a notebook shows."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import ammeter
from ammeter import Run
from ammeter.__main__ import main
from ammeter.report.notebook import report_of, short_html
from tests.agent.report.reporting import RUN, written
from tests.agent.stream_builder import Stream, mistaken, warm

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&lt;\u202e\x1b[31m"


class Elements(HTMLParser):
    """The elements, attributes and texts of a document; fails for elements that are not closed."""

    VOID = ("path", "polyline", "circle")

    def __init__(self, document: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(document)
        self.close()
        assert [] == self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.VOID
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert tag == self.open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def html_of(stream: Stream, folder: Path, **fields: object) -> Elements:
    written(stream, folder, **fields)  # type: ignore[arg-type]
    return Elements(report_of(folder / RUN)._repr_html_())


def test_the_text_is_what_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(mistaken("loss_not_scaled", scale=65536.0).bye(), tmp_path)
    main(["report", str(tmp_path / RUN)])
    printed = capsys.readouterr().out
    report = report_of(tmp_path / RUN)
    assert printed.rstrip("\n") == str(report) == repr(report)
    assert ["loss-not-scaled"] == [reported.finding.verdict for reported in report.findings]
    assert "loss-not-scaled" == report.as_json()["findings"][0]["verdict"]


def test_the_page_has_severity_title_cause_fix_and_place_of_each_finding(tmp_path: Path) -> None:
    found = html_of(mistaken("loss_not_scaled", scale=65536.0).bye(), tmp_path)
    (reported,) = report_of(tmp_path / RUN).findings
    finding = reported.finding
    for text in (reported.severity.upper(), finding.title, finding.cause, finding.fix, "loop/train.py:120"):
        assert " ".join(text.split()) in found.text


def test_the_page_draws_what_was_measured_with_skipped_steps(tmp_path: Path) -> None:
    stream = warm(60)
    for scale in (65536.0, 32768.0, 16384.0):
        stream.bad(scale)
    found = html_of(stream.good(8192.0).bye(), tmp_path)
    for text in ("loss", "loss scale (logarithmic)", "gradient norm", "3 not finite (red)", "skipped steps", "step 63"):
        assert text in found.text
    assert "validation loss" not in found.text
    assert {"svg", "polyline"} <= found.names


def test_the_page_loads_nothing_and_runs_nothing(tmp_path: Path) -> None:
    found = html_of(mistaken("loss_not_scaled", scale=65536.0).bye(), tmp_path)
    drawn = {"svg", "g", "text", "path", "polyline", "circle"}
    assert found.names <= drawn | {"div", "b", "span", "details", "summary"}
    assert not found.attributes & {"src", "href", "onload", "onerror", "onclick", "class", "id"}


def test_hostile_names_do_nothing(tmp_path: Path) -> None:
    stream = warm(40).event("usage.loss_not_scaled", caller=HOSTILE, optimizer=HOSTILE, scale=65536.0)
    stream.good(65536.0).bye("exception", HOSTILE)
    written(stream, tmp_path, name=HOSTILE, project=HOSTILE, host=HOSTILE, environment={"command": HOSTILE})
    for document in (report_of(tmp_path / RUN)._repr_html_(), short_html(tmp_path / RUN, HOSTILE)):
        found = Elements(document)
        assert "<script>alert(1)</script>" in found.text
        assert not found.names & {"script", "img"}
        assert "\u202e" not in document
        assert "\x1b" not in document


def test_a_run_without_a_step_has_no_curves(tmp_path: Path) -> None:
    found = html_of(Stream().bye(), tmp_path)
    assert "svg" not in found.names
    assert "No step was recorded" in found.text


def test_without_a_watched_run_the_report_says_so_and_raises_nothing(tmp_path: Path) -> None:
    for report, reason in (
        (Run().report(), "Nothing is watched: there is no report."),
        (report_of(tmp_path), "There is no report: there is no journal in"),
    ):
        assert str(report).startswith(reason)
        assert reason in Elements(report._repr_html_()).text
        assert ([], {}) == (list(report.findings), report.as_json())
    assert "Nothing is watched: there is no report." == Elements(Run()._repr_html_()).text


def test_a_live_run_reports_its_last_closed_step(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ammeter.watch(model, optimizer, dir=tmp_path, name="live")
    try:
        assert "No step was recorded" in str(run.report())
        for step in range(300):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).square().mean().backward()
            optimizer.step()
            run.log(own=float(step))
        found = run.report().as_json()
        assert (300, "running") == (found["summary"]["steps"], found["run"]["state"])
        run.log(val_loss=0.5)  # its row is written already
        assert 0.5 == run.report().as_json()["summary"]["val_loss"]["last"]
        assert "live" in Elements(run._repr_html_()).text
    finally:
        run.close()
    assert "ended" == run.report().as_json()["run"]["state"]


def _trained(folder: Path | None, every: int) -> list[torch.Tensor]:
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    run = ammeter.watch(model, optimizer, dir=folder) if folder else Run()
    for step in range(40):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        if every and step % every == 0:
            run.report()
    run.close()
    if folder:
        assert 40 == run.report().as_json()["summary"]["steps"]
    return [weight.detach().clone() for weight in model.parameters()]


def test_a_report_between_two_steps_changes_no_bit_and_no_step(tmp_path: Path) -> None:
    bare = _trained(None, 0)
    for every in (1, 7):
        assert all(map(torch.equal, bare, _trained(tmp_path / str(every), every)))


def test_watching_imports_nothing_of_the_report(tmp_path: Path) -> None:
    program = (
        "import sys, torch, ammeter\n"
        "model = torch.nn.Linear(2, 2)\n"
        "run = ammeter.watch(model, torch.optim.SGD(model.parameters(), 0.1), dir=sys.argv[1])\n"
        "print([name for name in sys.modules if name.startswith(('ammeter.report', 'rich', 'jinja2.'))])\n"
        "run.report(); print('ammeter.report.notebook' in sys.modules); run.close()"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert "[]\nTrue\n" == done.stdout, done.stderr
