"""Commands print their results as JSON, for programs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ammeter_server.__main__ import _parser, main
from tests.house.tree import ROOT

PROCESSES = ("serve", "demo")
"""Commands that run until they are ended, or train."""


def leaves(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yields the commands that have no further ones."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield name, parser
    for group in groups:
        for word, inner in group.choices.items():
            yield from leaves(inner, f"{name} {word}".strip())


@pytest.mark.parametrize("name", [name for name, _ in leaves(_parser()) if name not in PROCESSES])
def test_every_command_can_print_json(name: str) -> None:
    options = [option for action in dict(leaves(_parser()))[name]._actions for option in action.option_strings]
    assert "--json" in options


def test_results_are_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = ("--database-url", f"sqlite:///{tmp_path / 'c.db'}")

    def printed(*words: str) -> dict[str, object]:
        assert 0 == main([*words, "--json"])
        found: dict[str, object] = json.loads(capsys.readouterr().out)
        return found

    assert printed("migrate", *database)["before"] is None
    created = printed("token", "create", "speech", "--scopes", "read", *database)
    assert {"name": "speech", "scopes": "read", "expires": None} == {
        name: value for name, value in created.items() if name != "token"
    }
    assert len(str(created["token"])) > 30
    revoked = {"name": "speech", "revoked": True, "tokens_left": 0}
    assert revoked == printed("token", "revoke", "speech", *database)
    folder = str(tmp_path / "pages")
    assert {"folder": folder, "runbooks": len(list((ROOT / "alerts" / "runbooks").glob("*.md")))} == printed(
        "runbooks", folder
    )
