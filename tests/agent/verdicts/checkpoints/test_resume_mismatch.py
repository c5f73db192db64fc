"""resume-mismatch fires where a run goes on and its optimizer begins anew; fine-tuning and whole resumes are fine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.verdicts.causality import explain
from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import findings
from tests.agent.training import stream as journal_of
from tests.agent.training import watching


def resumed(*events: str, state_at_first: int = 0, optimizer: bool = True, steps: int = 20) -> Stream:
    """A run that reads a checkpoint in its first step, and what else it tells then; a census before and after it."""
    stream = Stream().good(65536)
    stream.event("weights.census", parameters={"float32": 99}, state={"float32": state_at_first})
    contents = {"weights": {"float32": 99}, "optimizer": optimizer, "whole": True}
    stream.event("checkpoint.restored", path="out/run.pt", contents=contents)
    for name in events:
        stream.event(name, scale=4096.0)
    stream.event("weights.census", parameters={"float32": 99}, state={"float32": 198})
    for _ in range(steps):
        stream.good(65536)
    return stream


def saved(stream: Stream, path: str) -> Stream:
    contents = {"weights": {"float32": 99}, "optimizer": True, "whole": True}
    return stream.event("checkpoint.saved", path=path, contents=contents, missing=[], exposed=[]).good(65536)


def found(stream: Stream) -> Finding:
    return findings(stream)["resume-mismatch"]


def test_a_scaler_that_was_restored_without_its_optimizer_is_told_a_step_later() -> None:
    assert {} == findings(resumed("scaler.restored", steps=0))
    finding = found(resumed("scaler.restored", steps=1))
    assert ("ticket", 0, 1) == (finding.severity, finding.first_step, finding.opened_step)
    assert (
        "The checkpoint out/run.pt, read at step 0, has optimizer state, but the optimizer that steps" in finding.cause
    )
    assert "continues the saved one, to judge by this: its scaler was restored." in finding.cause
    assert "Its 198 elements started from zero" in finding.cause
    assert 'optimizer.load_state_dict(checkpoint["optimizer"])' in finding.fix


@pytest.mark.parametrize(
    ("event", "because"),
    [
        ("scheduler.restored", "its learning rate schedule was restored"),
        ("run.continued", "an earlier process has trained in this run"),
        ("optimizer.discarded", "its state was loaded at train.py:7 into an optimizer that does not step"),
    ],
)
def test_other_signs_that_the_same_run_continues_are_told(event: str, because: str) -> None:
    assert {} == findings(resumed())
    stream = resumed(steps=0)
    stream.event(event, caller="train.py:7").good(65536)
    assert f"to judge by this: {because}." in found(stream.good(65536)).cause


@pytest.mark.parametrize("fits", [True, False])
@pytest.mark.parametrize("loaded", [True, False])
def test_a_file_that_fits_counts_if_the_model_loaded_weights(fits: bool, loaded: bool) -> None:
    stream = Stream().good(65536).event("weights.census", state={})
    contents = {"weights": {"float32": 99}, "optimizer": True, "whole": True}
    stream.event("checkpoint.restored", path="out/run.pt", contents=contents, fits=fits)
    if loaded:
        stream.event("model.restored", model="Net", caller="train.py:7")
    stream.event("weights.census", parameters={"float32": 99}, state={"float32": 198}).good(65536).good(65536)
    assert (["resume-mismatch"] if fits and loaded else []) == list(findings(stream))


def test_an_optimizer_that_takes_over_in_the_middle_of_a_run_is_silent() -> None:
    stream = resumed("optimizer.restored").event("optimizer.joined", optimizer="SGD", caller="x.py:1", replaces=True)
    assert {} == findings(saved(stream, "out/run.pt"))


def test_without_a_scaler_the_first_save_to_the_same_folder_says_that_it_is_the_same_run() -> None:
    assert {} == findings(resumed())
    finding = found(saved(resumed(), "out/run_2.pt"))
    assert (0, 20) == (finding.first_step, finding.opened_step)
    assert "it saves to the same folder" in finding.cause


@pytest.mark.parametrize(
    "stream",
    [
        resumed("scaler.restored", "optimizer.restored"),
        resumed("optimizer.restored", "scaler.restored"),
        resumed("scaler.restored", state_at_first=198),
        resumed("scaler.restored", optimizer=False),
        saved(resumed("optimizer.restored"), "out/run.pt"),
    ],
    ids=["restored", "restored first", "restored before watch()", "no state in it", "saved again"],
)
def test_a_run_that_goes_on_with_all_it_had_is_silent(stream: Stream) -> None:
    assert {} == findings(stream)


def test_a_checkpoint_that_is_read_back_to_see_whether_it_can_be_is_no_resume() -> None:
    contents = {"weights": {"float32": 99}, "optimizer": True, "whole": True}
    stream = Stream().good(65536).event("weights.census", parameters={"float32": 99}, state={})
    saved(stream, "out/run.pt").event("checkpoint.restored", path="out/run.pt", contents=contents)
    stream.event("weights.census", parameters={"float32": 99}, state={"float32": 198})
    assert {} == findings(saved(saved(stream, "out/run.pt"), "out/run.pt"))


def test_a_run_that_only_begins_with_another_ones_weights_is_silent() -> None:
    assert {} == findings(saved(resumed(steps=300), "fine-tuned/run.pt"))


def test_what_is_read_in_the_middle_of_a_run_is_no_resume() -> None:
    stream = Stream()
    stream.event("weights.census", state={}).good(65536).event("weights.census", state={"float32": 198})
    for _ in range(100):
        stream.good(65536)
    contents = {"weights": {"float32": 99}, "optimizer": True}
    stream.event("checkpoint.restored", path="out/run.pt", contents=contents).good(65536)
    assert {} == findings(saved(stream, "out/run.pt"))


def cast(saved: dict[str, int], state: dict[str, int], **after: int) -> Stream:
    """A run whose optimizer was given a state, and what a census found in it after the next step."""
    stream = Stream().event("weights.census", state={})
    stream.event("optimizer.restored", optimizer="AdamW", saved=saved, state=state).good()
    return (stream.event("weights.census", state=after) if after else stream).good()


def test_a_state_that_was_cast_to_half_precision_is_told_a_step_later() -> None:
    assert {} == findings(Stream().event("optimizer.restored", saved={"float32": 198}, state={"bfloat16": 198}))
    finding = found(cast({"float32": 198}, {"bfloat16": 198}))
    assert ("ticket", 0, 1) == (finding.severity, finding.first_step, finding.opened_step)
    assert "The optimizer state was saved in float32 and restored in bfloat16" == finding.title
    assert (
        "load_state_dict cast the optimizer state from float32 to bfloat16, because it uses the dtype of the weights."
        " 198 " in finding.cause
    )
    assert "use torch.autocast(device, dtype=torch.bfloat16) for the forward pass" in finding.fix


@pytest.mark.parametrize(
    "stream",
    [
        cast({"float32": 198}, {"float32": 198}),
        cast({"bfloat16": 198}, {"bfloat16": 198}),
        cast({"bfloat16": 198}, {"float32": 198}),
        cast({"float32": 198}, {"float32": 196, "bfloat16": 2}),
        cast({}, {"bfloat16": 198}),
        cast({"float32": 198}, {"bfloat16": 198}, float32=198),
    ],
    ids=["the same", "half before", "wider", "a few half vectors", "made anew", "cast back before the step"],
)
def test_a_state_that_keeps_its_bits_is_silent(stream: Stream) -> None:
    assert "resume-mismatch" not in findings(stream)


def test_a_state_that_is_cast_after_the_load_is_told() -> None:
    finding = found(cast({"float32": 198}, {"float32": 198}, float16=198))
    assert "The optimizer state was restored in float32 and then cast to float16" == finding.title
    assert "was loaded in float32 and then cast to float16. 198 elements changed dtype" in finding.cause


@pytest.mark.parametrize("half", [True, False])
def test_a_program_that_loads_its_optimizer_into_half_weights_is_told(half: bool, tmp_path: Path) -> None:
    model = torch.nn.Linear(6, 5)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(3, 6)).sum().backward()
    optimizer.step()
    saved = optimizer.state_dict()
    model = torch.nn.Linear(6, 5, dtype=torch.bfloat16 if half else torch.float32)
    optimizer = torch.optim.Adam(model.parameters())
    with watching(tmp_path, model, optimizer) as seen:
        optimizer.load_state_dict(saved)
        for _ in range(5):
            model(torch.randn(3, 6, dtype=model.weight.dtype)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    causes = explain([("stream", finding) for finding in seen.findings().values()])
    assert (["resume-mismatch"] if half else []) == [cause.finding.verdict for cause in causes]


@pytest.mark.parametrize("parts", [("model", "optimizer"), ("model",)])
@pytest.mark.parametrize("kind", [torch.optim.RMSprop, torch.optim.SGD])
def test_a_program_that_forgets_its_optimizer_is_told(parts: tuple[str, ...], kind: Any, tmp_path: Path) -> None:
    path = tmp_path / "kept" / "run.pt"
    path.parent.mkdir(mode=0o700)
    lived(path, tmp_path / "first", (), kind)
    stream = lived(path, tmp_path / "second", parts, kind)
    forgot = "optimizer" not in parts and kind is torch.optim.RMSprop  # plain SGD has no state to forget
    assert (["resume-mismatch"] if forgot else []) == list(findings(stream))


def lived(path: Path, journals: Path, restore: tuple[str, ...], kind: Any) -> Stream:
    """One life of a run, which goes on from what these parts were."""
    have: dict[str, Any] = {"model": torch.nn.LSTM(3, 4)}
    have["optimizer"] = kind(have["model"].parameters(), lr=0.01)
    with watching(journals, have["model"], have["optimizer"]) as seen:
        if restore:
            saved = torch.load(path, weights_only=True)
            for name in restore:
                have[name].load_state_dict(saved[name])
        for _ in range(5):
            have["optimizer"].zero_grad()
            have["model"](torch.randn(2, 5, 3))[0].square().mean().backward()
            have["optimizer"].step()
        torch.save({name: part.state_dict() for name, part in have.items()}, path)
    stream = Stream()
    stream.frames = journal_of(seen.run, journals)[1]
    return stream
