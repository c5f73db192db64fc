"""A verdict that nobody wants to hear of: by an option, a setting or a tag; that it was reached is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ammeter
from ammeter.__main__ import main
from ammeter.verdicts import silence
from ammeter.wire.frames import Hello
from tests.agent import streams_run  # noqa: F401 - registers its streams
from tests.agent.launching import launch
from tests.agent.report.reporting import as_json, written
from tests.agent.streams import BROKEN
from tests.agent.training import stream

Output = pytest.CaptureFixture[str]


@pytest.fixture
def exposed(tmp_path: Path) -> Path:
    return written(BROKEN["checkpoint-exposed"]().bye(), tmp_path).parent


def test_a_report_leaves_it_out_and_says_that_it_was_found(exposed: Path, capsys: Output) -> None:
    assert ["checkpoint-exposed"] == [entry["verdict"] for entry in as_json(capsys, exposed)["findings"]]
    told = as_json(capsys, exposed, "--silence", "checkpoint-exposed, gradient-spike")
    assert ([], []) == (told["findings"], [event for event in told["seen"] if event["event"] == "checkpoint.saved"])
    assert {"checkpoint-exposed": True, "gradient-spike": False} == told["summary"]["silenced"]
    main(["report", str(exposed), "--silence", "checkpoint-exposed", "--silence", "gradient-spike"])
    out = " ".join(capsys.readouterr().out.split())
    assert "Silenced, and found: checkpoint-exposed. Silenced, and not found: gradient-spike." in out


def test_what_a_silenced_cause_led_to_is_told_by_itself(tmp_path: Path, capsys: Output) -> None:
    run = written(BROKEN["nonfinite-gradient"](), tmp_path)
    whole = as_json(capsys, run)["findings"]
    (first,) = [entry for entry in whole if entry["consequences"]]
    (behind, *_) = first["consequences"]
    left = as_json(capsys, run, "--silence", first["verdict"])["findings"]
    assert behind["verdict"] in [entry["verdict"] for entry in left]
    assert first["verdict"] not in [entry["verdict"] for entry in left]


@pytest.mark.parametrize(
    "words",
    [("report", "."), ("gate", ".", "x"), ("run",)],
)
def test_a_name_that_is_none_is_refused_with_what_may_be_meant(words: tuple[str, ...], capsys: Output) -> None:
    behind = ("--", "true") if words == ("run",) else ()
    with pytest.raises(SystemExit) as ended:
        main([*words, "--silence", "checkpoint-exposd", *behind])
    assert 2 == ended.value.code
    assert "no verdict 'checkpoint-exposd' to silence; did you mean checkpoint-exposed" in capsys.readouterr().err


def test_names_are_told_once_each_and_one_that_resembles_none_gets_them_all() -> None:
    assert ("run-lost", "sdpa-math") == silence.names(["run-lost, sdpa-math", "run-lost", ""])
    with pytest.raises(ValueError, match="no verdict 'qqq' to silence; use some of loss-not-scaled, "):
        silence.names(["qqq"])
    assert frozenset({"run-lost", "of-tomorrow"}) == silence.of_tags({"silence": "run-lost,of-tomorrow"})


def test_a_setting_and_a_tag_are_recorded_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMMETER_SILENCE", "gradient-spike")
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ammeter.watch(model, optimizer, dir=tmp_path, tags={"silence": "run-lost", "team": "x"})
    run.close()
    hello = next(frame for frame in stream(run.id, tmp_path)[1] if isinstance(frame, Hello))
    assert {"silence": "run-lost,gradient-spike", "team": "x"} == hello.tags
    monkeypatch.setenv("AMMETER_SILENCE", "gradient-spik")
    with pytest.raises(ValueError, match="did you mean gradient-spike"):
        ammeter.watch(model, optimizer, dir=tmp_path)


SPOILS = """
for number in range(30):
    step()
    if number == 20:
        with torch.no_grad(): model[0].weight.fill_(float("nan"))
"""


def test_a_launched_run_is_silenced_to_its_end_and_in_its_record(tmp_path: Path, capsys: Output) -> None:
    names = ["nonfinite-weights", "nonfinite-loss,nonfinite-gradient"]
    options = [word for name in names for word in ("--silence", name)]
    found = launch(SPOILS, tmp_path, options=options).end()
    last = found.err.splitlines()[-1]
    assert "ammeter: nothing wrong was found, apart from silenced verdicts: nonfinite-" in last
    assert [] == as_json(capsys, found.folder)["findings"]
