from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from ammeter.environment.settings import DEFAULT_BUDGET, DEFAULT_FLUSH_SECONDS, disabled, settings


def test_without_a_word_the_journal_stays_at_home_and_nothing_is_sent() -> None:
    found = settings(environment={})
    assert (None, None, Path.home() / ".ammeter") == (found.url, found.token, found.dir)
    assert (DEFAULT_BUDGET, DEFAULT_FLUSH_SECONDS) == (found.budget, found.flush)


def test_every_setting_is_taken_from_the_environment() -> None:
    said = {
        "AMMETER_URL": "https://collector.example/",
        "AMMETER_TOKEN": "secret",
        "AMMETER_DIR": "/data/journals",
        "AMMETER_BUDGET": "0.05",
        "AMMETER_FLUSH": "0",
    }
    found = settings(environment=said)
    assert "https://collector.example" == found.url
    assert ("secret", Path("/data/journals"), 0.05, 0.0) == (found.token, found.dir, found.budget, found.flush)


def test_what_watch_was_given_comes_before_the_environment(tmp_path: Path) -> None:
    data = {"AMMETER_URL": "http://other", "AMMETER_DIR": "/other", "AMMETER_BUDGET": "0.5"}
    found = settings("http://here", tmp_path, 0.02, data)
    assert ("http://here", tmp_path, 0.02) == (found.url, found.dir, found.budget)


def test_an_empty_variable_is_as_good_as_none() -> None:
    names = ("AMMETER_URL", "AMMETER_TOKEN", "AMMETER_TOKEN_FILE", "AMMETER_DIR", "AMMETER_BUDGET", "AMMETER_FLUSH")
    assert settings(environment={}) == settings(environment=dict.fromkeys(names, ""))


def test_a_folder_is_absolute_wherever_the_program_goes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tmp_path / "journals" == settings(dir="journals", environment={}).dir
    assert Path.home() / "journals" == settings(environment={"AMMETER_DIR": "~/journals"}).dir


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("AMMETER_URL", "collector:8480", r"AMMETER_URL is 'collector:8480'; use http:// or https://, such as "),
        ("AMMETER_URL", "ftp://collector", r"AMMETER_URL is 'ftp://collector'; use http"),
        ("AMMETER_BUDGET", "lots", r"AMMETER_BUDGET is 'lots'; use a number such as 0\.01"),
        ("AMMETER_BUDGET", "5", r"AMMETER_BUDGET is 5\.0; use a share of step time above 0 and at most 1"),
        ("AMMETER_BUDGET", "0", r"AMMETER_BUDGET is 0\.0; use a share"),
        ("AMMETER_BUDGET", "nan", r"AMMETER_BUDGET is nan; use a share"),
        ("AMMETER_FLUSH", "soon", r"AMMETER_FLUSH is 'soon'; use a number such as 5"),
        ("AMMETER_FLUSH", "-1", r"AMMETER_FLUSH is -1\.0; use seconds from 0, which never waits, to 3600"),
        ("AMMETER_FLUSH", "inf", r"AMMETER_FLUSH is inf; use seconds"),
        ("AMMETER_FLUSH", "nan", r"AMMETER_FLUSH is nan; use seconds"),
    ],
)
def test_a_wrong_value_is_refused_by_name_with_the_remedy(name: str, value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(environment={name: value})


def test_a_token_can_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("the-file\n")
    variables = {"AMMETER_TOKEN_FILE": str(tmp_path / "token")}
    assert "the-file" == settings(environment=variables).token
    assert "given" == settings(environment={**variables, "AMMETER_TOKEN": "given"}).token


@pytest.mark.parametrize("content", ["", "\n", "two words", b"\xff\xfe"])
def test_a_file_without_one_token_is_refused(content: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=f"AMMETER_TOKEN_FILE is '{path}', which"):
        settings(environment={"AMMETER_TOKEN_FILE": str(path)})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read: No such file or directory; use a readable file"):
        settings(environment={"AMMETER_TOKEN_FILE": str(tmp_path / "token")})


@pytest.mark.parametrize("budget", [-0.1, 0.0, 1.01, math.nan, "lots"])
def test_a_wrong_budget_argument_is_named_as_the_argument_it_is(budget: Any) -> None:
    with pytest.raises(ValueError, match=rf"^budget is {budget!r}; use a share"):
        settings(budget=budget, environment={"AMMETER_BUDGET": "0.5"})


@pytest.mark.parametrize("said", ["1", "true", "yes", "on", "TRUE"])
def test_these_words_turn_everything_off(said: str) -> None:
    assert disabled({"AMMETER_DISABLE": said})


@pytest.mark.parametrize("said", ["", "0", "false", "No", " off "])
def test_these_words_turn_nothing_off(said: str) -> None:
    assert not disabled({"AMMETER_DISABLE": said})
    assert not disabled({})
