"""A script's command line as settings, and what `ammeter run` hands on of tags and config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ammeter import launcher
from ammeter.environment.command_line import parse
from ammeter.environment.settings import launched
from ammeter.journal.find import hello_of
from ammeter.launcher.run_options import encode_config, parse_tags, read_config
from tests.agent import launching


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--lr 3e-4", {"lr": 3e-4}),
        ("--lr=3e-4", {"lr": 3e-4}),
        ("-x 3", {"x": 3}),
        ("--amp --steps 5", {"amp": True, "steps": 5}),
        ("--amp", {"amp": True}),
        ("model.width=64 +data.name=c4 ~x=", {"model.width": 64, "data.name": "c4", "x": ""}),
        ("--offset -3 --scale -1.5e-3", {"offset": -3, "scale": -1.5e-3}),
        ("--sizes 1 2 3 --name a b", {"sizes": [1, 2, 3], "name": "a", "argument.1": "b"}),
        ("--tag a --tag b", {"tag": ["a", "b"]}),
        ("config.yaml --compile false --none None", {"argument.1": "config.yaml", "compile": False, "none": None}),
        ("--amp model.width=64", {"amp": True, "model.width": 64}),
        ("--set=a=b -- rest", {"set": "a=b", "argument.1": "rest"}),
        ("--path=", {"path": ""}),
        ("--id 0x10 --hash 1e5a --date 2026-01-02", {"id": "0x10", "hash": "1e5a", "date": "2026-01-02"}),
        ("-", {"argument.1": "-"}),
        ("", {}),
    ],
)
def test_options_become_settings(words: str, expected: dict[str, Any]) -> None:
    assert expected == parse(words.split())


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("a.json", '{"lr": 0.1, "model": {"width": 64}}'),
        ("a.toml", "lr = 0.1\n[model]\nwidth = 64\n"),
        ("a.yaml", "lr: 0.1\nmodel:\n  width: 64\n"),
        ("a.YML", "lr: 0.1\nmodel: {width: 64}\n"),
    ],
)
def test_a_config_is_read_from_json_toml_and_yaml(tmp_path: Path, name: str, body: str) -> None:
    (tmp_path / name).write_text(body)
    assert {"lr": 0.1, "model": {"width": 64}} == read_config(str(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "body", "error"),
    [
        ("a.ini", "", "ends in '.ini'; use .json, .toml, .yaml or .yml"),
        ("a.json", "{", "cannot be parsed"),
        ("a.json", "[1]", "contains a list; use a mapping of names to values"),
        ("a.yaml", "a: [", "cannot be parsed"),
        ("none/a.json", None, "cannot be read: No such file or directory"),
    ],
)
def test_a_config_that_cannot_be_read_is_a_wrong_call(
    tmp_path: Path, name: str, body: str | None, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if body is not None:
        (tmp_path / name).write_text(body)
    with pytest.raises(SystemExit) as left:
        launcher.main(["--config", str(tmp_path / name), "--", "true"])
    assert (2, True) == (left.value.code, error in capsys.readouterr().err)


def test_yaml_without_pyyaml_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text("lr: 0.1")
    monkeypatch.setattr("ammeter.launcher.run_options.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="PyYAML is not installed; install it, or use JSON or TOML"):
        read_config(str(tmp_path / "a.yaml"))


@pytest.mark.parametrize("said", ["team", "=vision", " =x", "better.val_accuracy=up"])
def test_a_tag_that_is_none_is_a_wrong_call(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        launcher.main(["--tag", said, "--", "true"])
    assert 2 == left.value.code
    assert "use" in capsys.readouterr().err


def test_what_is_handed_on_is_what_was_said(tmp_path: Path) -> None:
    tags, config = {"baseline": "monday", "note": "a=b"}, {"lr": 0.1, "name": 'q"ü'}
    environment = {"AMMETER_TAGS": encode_config(tags), "AMMETER_CONFIG": encode_config(config)}
    assert tags == parse_tags(["baseline=monday", "note=a=b"])
    assert (tags, config) == (launched(environment).tags, launched(environment).config)
    with pytest.raises(ValueError, match="use at most"):
        encode_config({"a": "x" * 100_000})
    with pytest.raises(ValueError, match="AMMETER_TAGS is '\\[1\\]'; use a JSON object"):
        launched({"AMMETER_TAGS": json.dumps([1])})


@pytest.mark.parametrize("watches", [False, True], ids=["unchanged script", "script with watch()"])
def test_an_unchanged_script_has_its_options_as_config_and_the_launchers_tags(tmp_path: Path, watches: bool) -> None:
    calls = "import ammeter\nrun = ammeter.watch(model, optimizer, tags={'own': 'yes'})\n" if watches else ""
    options = ["--tag", "baseline=monday", "--tag", "better.val_accuracy=higher"]
    command = [*launching.PYTHON, "--lr", "3e-4", "--amp", "model.width=64"]
    program = launching.launch(calls + "step()\nstep()\n", tmp_path, options=options, command=command)
    assert 0 == program.process.wait(120)
    program.process.communicate()
    (stream,) = tmp_path.glob("ammeter/*/*/alive")
    hello = hello_of(stream.parent)
    assert hello is not None
    assert {"lr": 3e-4, "amp": True, "model.width": 64} == hello.config
    assert {"baseline": "monday", "better.val_accuracy": "higher", **({"own": "yes"} if watches else {})} == hello.tags


def test_a_config_file_takes_the_place_of_the_options(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("lr = 0.5\n[model]\nwidth = 64\n")
    options = ["--config", str(tmp_path / "settings.toml")]
    program = launching.launch("step()\n", tmp_path, options=options, command=[*launching.PYTHON, "--lr", "9"])
    assert 0 == program.process.wait(120)
    program.process.communicate()
    (stream,) = tmp_path.glob("ammeter/*/*/alive")
    hello = hello_of(stream.parent)
    assert hello is not None
    assert {"lr": 0.5, "model": {"width": 64}} == hello.config
