"""Pins beside the journals, which `ammeter gate` uses, and pins at a collector."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from ammeter.__main__ import main
from ammeter.client import Client
from ammeter.report.pinned_baselines import FILE
from tests.agent.report.gate.test_gate import NO_SPEED, train
from tests.server.feeding import Stream, serving
from tests.server.feeding import train as feed

Output = pytest.CaptureFixture[str]


def called(capsys: Output, *words: str | Path) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(list(map(str, words)))
    output = capsys.readouterr()
    return code, output.out, output.err


def test_the_gate_uses_the_pin_of_the_name_before_that_of_the_project(tmp_path: Path, capsys: Output) -> None:
    other, same, run = (train(tmp_path, name, spoil=spoil) for name, spoil in (("a", 0.5), ("b", 0.0), ("b", 0.0)))
    code, _, error = called(capsys, "gate", run)
    assert (2, True) == (code, "has no baseline; name BASELINE, set the tag `baseline`, or pin a run" in error)
    assert 0 == called(capsys, "baseline", "pin", other)[0]
    assert "b against a" in called(capsys, "gate", run, *NO_SPEED)[1]
    code, out, _ = called(capsys, "baseline", "pin", same, "--of", "name")
    assert (0, 2) == (code, len(out.splitlines()))
    assert f"project default, runs named b: {same.name}" in out
    assert "b against b" in called(capsys, "gate", run, *NO_SPEED)[1]
    assert 0 == called(capsys, "baseline", "unpin", same, "--of", "name")[0]
    assert "b against a" in called(capsys, "gate", run, *NO_SPEED)[1]


def test_the_tag_of_a_run_and_a_named_baseline_come_before_any_pin(tmp_path: Path, capsys: Output) -> None:
    pinned, tagged = train(tmp_path, "pinned"), train(tmp_path, "tagged")
    run = train(tmp_path, "run", tags={"baseline": "tagged"})
    called(capsys, "baseline", "pin", pinned)
    assert "run against tagged" in called(capsys, "gate", run, *NO_SPEED)[1]
    assert "run against pinned" in called(capsys, "gate", run, "pinned", *NO_SPEED)[1]
    assert "tagged against pinned" in called(capsys, "gate", tagged, *NO_SPEED)[1]


def test_the_pinned_run_is_not_its_own_baseline(tmp_path: Path, capsys: Output) -> None:
    run = train(tmp_path, "only")
    called(capsys, "baseline", "pin", run)
    code, _, error = called(capsys, "gate", run)
    assert (2, True) == (code, "is itself the pinned baseline" in error)


def test_a_pin_that_is_none_is_a_wrong_call_with_the_remedy(tmp_path: Path, capsys: Output) -> None:
    run = train(tmp_path, "only")
    assert "is not pinned there" in called(capsys, "baseline", "unpin", run)[2]
    assert "there is no run 'nobody'" in called(capsys, "baseline", "pin", "nobody", "--dir", tmp_path)[2]
    assert (0, "no run is pinned\n", "") == called(capsys, "baseline", "list", "--dir", tmp_path)
    (tmp_path / FILE).write_text("{}")
    code, _, error = called(capsys, "gate", run)
    assert (2, True) == (code, "remove it, and pin the baselines again" in error)


@pytest.fixture
def client(tmp_path: Path) -> httpx.Client:  # type: ignore[misc]
    with serving(tmp_path) as client:
        yield client


def test_pins_at_the_collector_are_set_listed_and_removed(client: httpx.Client, capsys: Output) -> None:
    stream = Stream(client, name="nightly")
    feed(stream, 0, 9)
    stream.send()
    url = ("--url", str(client.base_url))
    assert (0, f"project demo, all other runs: {stream.run}\n", "") == called(
        capsys, "baseline", "pin", stream.run, *url
    )
    code, out, _ = called(capsys, "baseline", "pin", stream.run, "--of", "name", *url)
    assert (0, f"project demo, runs named nightly: {stream.run}") == (code, out.splitlines()[1])
    with Client(str(client.base_url)) as reader:
        assert [None, "nightly"] == [pin.name for pin in reader.baselines("demo")]
    listed = json.loads(called(capsys, "baseline", "list", "--json", *url)[1])["items"]
    assert [("", stream.run), ("nightly", stream.run)] == [(pin["name"], pin["run"]) for pin in listed]
    assert 1 == len(called(capsys, "baseline", "unpin", stream.run, *url)[1].splitlines())
    assert (0, "no run is pinned\n") == called(capsys, "baseline", "list", "--project", "other", *url)[:2]
