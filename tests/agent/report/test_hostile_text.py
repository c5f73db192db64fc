"""Text from a run cannot control a terminal, in any output of the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ammeter.__main__ import main
from ammeter.wire.frames import Event, Hello, Lost
from ammeter.wire.printable import INVISIBLE_BREAK
from tests.agent import streams_kernels  # noqa: F401 - registers its streams
from tests.agent.report.reporting import RUN, as_json, written
from tests.agent.stream_builder import Stream, warm
from tests.agent.streams import BROKEN


def test_numbers_that_are_not_finite_are_text_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"clip": float("inf"), "betas": [0.9, float("nan")]}
    written(warm().good(65536, loss=float("inf")).bye(), tmp_path, config=config)
    document = as_json(capsys, tmp_path)
    assert ["Infinity"] == [finding["evidence"]["loss"] for finding in document["findings"]]
    assert {"clip": "Infinity", "betas": [0.9, "NaN"]} == document["run"]["config"]


def test_names_from_a_run_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[31m[bold]gpt[/bold]\x07"
    written(warm().bye(), tmp_path, name=evil, host=evil)
    main(["report", str(tmp_path)])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "[bold]gpt[/bold]" in out


STEERS = "".join(map(chr, range(32))) + "\x7f\x85\x9b2J\u2028\u202e\u2066\ufeff\U000e0041"


def steering(value: Any) -> Any:
    """The same with what steers a terminal behind each text."""
    if isinstance(value, dict):
        return {name: steering(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [steering(member) for member in value]
    return value + STEERS if isinstance(value, str) else value


def said_by_a_hostile_run(stream: Stream) -> Stream:
    tensors = [msgspec.structs.replace(tensor, name=tensor.name + STEERS) for tensor in stream.schema.tensors]
    schema = msgspec.structs.replace(stream.schema, tensors=tuple(tensors))
    names = dict.fromkeys(("name", "project", "host"), f"x{STEERS}")
    mappings = {name: {f"baseline{STEERS}": STEERS, "x": STEERS} for name in ("config", "tags", "environment")}
    for at, frame in enumerate(stream.frames):
        if isinstance(frame, Hello):
            stream.frames[at] = msgspec.structs.replace(frame, schema=schema, **names, **mappings)
        elif isinstance(frame, Event):
            stream.frames[at] = msgspec.structs.replace(frame, data=steering(frame.data))
    stream.frames.append(Lost(f"cap{STEERS}", 1))
    stream.event(f"a.b{STEERS}", x=STEERS)
    return stream.bye("exception", STEERS)


@pytest.mark.parametrize("name", BROKEN)
def test_nothing_that_a_run_says_steers_the_terminal(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(said_by_a_hostile_run(BROKEN[name]()), tmp_path)
    for words in (["report"], ["report", "--json"], ["report", "--postmortem", "-"], ["gate"], ["gate", "--json"]):
        main([words[0], str(tmp_path), *([str(tmp_path / RUN)] if words[0] == "gate" else []), *words[1:]])
        output = capsys.readouterr()
        assert len(output.out) > 100
        assert "" == output.err
        allowed = "\n" + INVISIBLE_BREAK  # the latter keeps an @ from being a mention
        assert set() == {sign for sign in output.out if not sign.isprintable() and sign not in allowed}, words


def test_json_with_signs_escaped_means_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(warm().bye(), tmp_path, name=STEERS, tags={STEERS: STEERS})
    run = as_json(capsys, tmp_path)["run"]
    assert (STEERS, {STEERS: STEERS}) == (run["name"], run["tags"])
