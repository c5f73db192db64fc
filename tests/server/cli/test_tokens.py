from __future__ import annotations

import json
from pathlib import Path

import pytest

from ammeter_server.__main__ import main
from ammeter_server.auth.tokens import TokenError
from ammeter_server.cli.tokens import moment

NOW = 1_760_000_000 * 10**9
"""2025-10-09T08:53:20Z."""


class Shell:
    """Types commands on one database and reads what they print."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = f"sqlite:///{folder / 'c.db'}"
        self.capsys = capsys

    def __call__(self, *words: str) -> list[str]:
        assert 0 == main([*words, "--database-url", self.url]), self.capsys.readouterr().err
        return self.capsys.readouterr().out.splitlines()


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, capsys)


def test_the_tokens_there_are_are_listed_without_what_they_are(shell: Shell) -> None:
    (token,) = shell("token", "create", "speech", "--scopes", "ingest", "--project", "speech", "--expires", "30d")
    shell("token", "create", "grafana", "--scopes", "read")
    first, second = shell("token", "list")
    assert first.startswith("speech  ingest  project speech  created 20")
    assert "  expires 20" in first
    assert second.startswith("grafana  read  all projects  created 20")
    assert second.endswith("never expires")
    assert token not in first + second
    described = json.loads(shell("token", "list", "--json")[1])
    assert ("grafana", "read", None, True) == tuple(described[name] for name in ("name", "scopes", "project", "valid"))


def test_the_last_token_that_is_revoked_says_what_that_means(shell: Shell) -> None:
    for name in ("one", "two"):
        shell("token", "create", name)
    assert ["the token 'one' and its sessions are no longer valid"] == shell("token", "revoke", "one")
    assert "on loopback the collector now accepts every request" in shell("token", "revoke", "two")[1]
    assert [] == shell("token", "list")


def test_what_was_done_by_hand_is_noted(shell: Shell) -> None:
    shell("token", "create", "grafana", "--scopes", "read")
    shell("token", "revoke", "grafana")
    revoked, created = (json.loads(line) for line in shell("audit", "--json"))
    assert ("token.revoked", "grafana") == (revoked["action"], revoked["subject"])
    assert ("token.created", "grafana", "read") == tuple(created[name] for name in ("action", "subject", "detail"))
    assert created["who"].startswith("command line")
    assert "token.revoked  grafana" in shell("audit")[0]


def test_a_variable_that_is_not_set_makes_no_token_without_an_end(shell: Shell) -> None:
    assert 2 == main(["token", "create", "x", "--expires", "", "--database-url", shell.url])
    assert [] == shell("token", "list")


@pytest.mark.parametrize(
    ("text", "seconds"), [("45m", 2700), ("12h", 43_200), ("30d", 2_592_000), ("2025-10-10", 54_400)]
)
def test_a_time_to_come_is_understood(text: str, seconds: int) -> None:
    assert seconds * 10**9 == moment(text, NOW) - NOW


@pytest.mark.parametrize("text", ["0d", "-1d", "soon", "2025-10-01", "", "1d2h", "999999999d", "30", "2025-13-01"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(TokenError, match="30d, 12h or 45m"):
        moment(text, NOW)
