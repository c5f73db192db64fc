"""Names of the release that programs, scripts, rules and dashboards rely on: this tree has all of them."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from tests import forked
from tests.compat import surface
from tests.compat.processes import Collector
from tests.compat.release import LIBRARIES, NEW, PUBLIC

RECORDED = json.loads(PUBLIC.read_text())


@pytest.fixture(scope="module")
def names() -> surface.Names:
    return surface.read()


@pytest.mark.parametrize("kind", ["settings", "events", "columns", "verdicts"])
def test_no_name_is_gone(kind: str, names: surface.Names) -> None:
    assert set() == set(RECORDED[kind]) - set(names[kind])


def test_no_command_or_option_is_gone(names: surface.Names) -> None:
    gone = {
        command: set(options) - set(names["commands"].get(command, ()))
        for command, options in RECORDED["commands"].items()
    }
    assert set(RECORDED["commands"]) <= set(names["commands"])
    assert {} == {command: options for command, options in gone.items() if options}


def test_metrics_have_their_kind_and_labels(names: surface.Names) -> None:
    assert RECORDED["metrics"] == {name: names["metrics"].get(name) for name in RECORDED["metrics"]}


@pytest.mark.parametrize("name", sorted(RECORDED["python"]))
def test_a_call_that_worked_works(name: str, names: surface.Names) -> None:
    assert name in names["python"]
    before, after = RECORDED["python"][name], names["python"][name]
    if before and isinstance(before[0], list):
        assert [] == list(broken_calls(before, after))
    else:
        assert before == after


def broken_calls(before: list[list[str]], after: list[list[str]]) -> Iterator[str]:
    """Parameters that are gone, changed or moved, and new ones that a call has to give."""
    positional = [parameter for parameter in before if parameter[1] == "POSITIONAL_OR_KEYWORD"]
    if after[: len(positional)] != positional:
        yield f"{positional} do not come first any more"
    yield from (f"{parameter} is gone or changed" for parameter in before if parameter not in after)
    known = {name for name, _, _ in before}
    for name, kind, default in after:
        if name not in known and not default and not kind.startswith("VAR"):
            yield f"{name} has to be given"


def test_requests_that_were_answered_are_answered(names: surface.Names) -> None:
    assert [] == list(broken_requests(RECORDED["api"], names["api"]))


def broken_requests(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Operations, parameters, bodies and answers that are gone, and new parameters that a request has to give."""
    for operation, was in before.items():
        now = after.get(operation)
        if now is None:
            yield f"{operation} is gone"
            continue
        yield from (f"{operation}: {name} is gone" for name in was["parameters"] if name not in now["parameters"])
        for name, required in now["parameters"].items():
            if required and not was["parameters"].get(name, False):
                yield f"{operation}: {name} has to be given"
        yield from (f"{operation}: no body of {kind}" for kind in was["body"] if kind not in now["body"])
        for code, kinds in was["answers"].items():
            yield from (
                f"{operation}: {code} is not {kind}" for kind in kinds if kind not in now["answers"].get(code, [])
            )


UNUSABLE = {
    "ALERTMANAGER_URL": "x",
    "CORES": "x",
    "COST_PER_HOUR": "x",
    "DATABASE_URL": "x",
    "HOST": "0.0.0.0",
    "KEEP_BYTES": "x",
    "KEEP_DAYS": "x",
    "NOTIFY": "x",
    "NOTIFY_FILE": "/nonexistent",
    "OBJECTIVE_FINITE": "2",
    "OBJECTIVE_RUNS": "2",
    "OBJECTIVE_STEPS": "2",
    "OBJECTIVE_TIME": "2",
    "OBJECTIVE_VALIDATION": "2",
    "PORT": "x",
    "PUBLIC_URL": "x",
    "RUNBOOK_URL": "x",
    "TLS_CERT": "/nonexistent",
    "TLS_KEY": "/nonexistent",
    "TOKEN_FILE": "/nonexistent",
    "TRUSTED_PROXIES": "x",
}
"""A value that each setting of the collector refuses."""


def test_every_setting_of_the_collector_has_a_value_that_it_refuses() -> None:
    ours = {name for name in RECORDED["settings"] if name.startswith("AMMETER_SERVER_")}
    assert ours == {f"AMMETER_SERVER_{name}" for name in UNUSABLE}


@pytest.mark.parametrize("name", sorted(UNUSABLE))
def test_a_setting_of_the_collector_is_read(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(f"AMMETER_SERVER_{name}", UNUSABLE[name])
    (entry,) = entry_points(group="console_scripts", name="ammeter-server")
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        assert 2 == entry.load()(["serve"])
    assert f"AMMETER_SERVER_{name}" in errors.getvalue()


@pytest.mark.parametrize(("name", "value"), [("URL", "x"), ("BUDGET", "x"), ("FLUSH", "x")])
def test_a_setting_of_the_agent_that_cannot_be_is_refused_by_name(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"AMMETER_{name}", value)
    with pytest.raises(ValueError, match=f"AMMETER_{name}"):
        ammeter.watch(*parts())


def test_the_agent_is_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMMETER_DISABLE", "1")
    assert "" == ammeter.watch(*parts()).id


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    optimizer.zero_grad()
    model(torch.randn(4, 2)).square().mean().backward()
    optimizer.step()
"""


def test_the_options_of_ammeter_run_and_their_variables_reach_the_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "config.json").write_text('{"depth": 3}')
    run = "7f4cf8e6-9f0b-4c5e-8d36-6d0b5d4c1a11"
    options = ["--name", "named", "--project", "ours", "--tag", "team=vision", "--config", "config.json"]
    options += ["--preset", "light", "--budget", "0.02", "--silence", "run-lost", "--dir", str(tmp_path / "journals")]
    command = [sys.executable, "-m", "ammeter", "run", *options, "--", sys.executable, "train.py"]
    done = forked.run(
        command,
        imports=LIBRARIES,
        levels=1,
        env=NEW.environment(AMMETER_RUN_ID=run),
        cwd=tmp_path,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    output = json.loads(NEW.run("ammeter", "report", str(tmp_path / "journals" / run), "--json"))
    found = output["run"]
    assert ("named", "ours", 12) == (found["name"], found["project"], output["summary"]["steps"])
    assert {"team": "vision", "silence": "run-lost"}.items() <= found["tags"].items()
    assert {"depth": 3} == found["config"]


BY_HAND = """
import struct, sys, time, urllib.request, uuid
from ammeter import block, wire

run, stream, now = str(uuid.uuid4()), uuid.uuid4().hex, time.time_ns()
schema = wire.Schema(("loss", "scale"))
rows = [wire.Steps(step, now + step, struct.pack("<2f", 1 / (step + 1), 65536)) for step in range(3)]
batch = wire.Batch(
    [
        wire.Hello(run=run, stream=stream, schema=schema, name="by-hand", started=now),
        block.pack(block.view(schema, rows)),
        wire.Bye("closed", 2, now + 3),
    ]
)
url = f"{sys.argv[1]}/api/v1/runs/{run}/streams/{stream}/frames?offset=0&end=500"
request = urllib.request.Request(url, wire.encode_batch(batch), {"Content-Type": wire.CONTENT_TYPE})
print(urllib.request.urlopen(request).read())
"""
"""The program in docs/flow.md of the release that sends a stream by hand."""


def test_the_documented_program_that_sends_a_stream_by_hand_still_works(tmp_path: Path) -> None:
    with Collector(NEW, tmp_path, f"sqlite:///{tmp_path / 'collector.db'}") as collector:
        done = subprocess.run(
            [sys.executable, "-c", BY_HAND, collector.url],
            capture_output=True,
            text=True,
            timeout=60,
            env=NEW.environment(),
        )
        assert done.returncode == 0, done.stderr
        assert str(b'{"offset":500,"directives":[]}') == done.stdout.strip()
        assert ["by-hand"] == [run["name"] for run in collector.items("/api/v1/runs")]


def test_a_model_saved_whole_under_the_precision_guard_still_loads() -> None:
    hook = pickle.loads(b"cammeter.guards.wide\n_nothing\n(tR.")  # as 0.1.0 pickled it
    assert hook("module", ()) is None
