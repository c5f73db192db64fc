from __future__ import annotations

from pathlib import Path

import pytest

from ammeter_server.config.settings import Settings, SettingsError, from_environment
from ammeter_server.config.values import urls

SECRET = "0123456789abcdef0123456789abcdef"


def test_without_any_setting_it_is_sqlite_on_loopback() -> None:
    found = from_environment(environment={})
    assert ("127.0.0.1", 8480, "", ()) == (found.host, found.port, found.token, found.notify)
    assert f"sqlite:///{Path.home()}/.ammeter/collector.db" == found.database_url
    assert "http://127.0.0.1:8480" == found.page_url


def test_the_environment_is_read_and_the_command_line_wins(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(SECRET + "\n")
    environment = {
        "AMMETER_SERVER_DATABASE_URL": "postgresql://db/ammeter",
        "AMMETER_SERVER_HOST": "0.0.0.0",
        "AMMETER_SERVER_PORT": "9000",
        "AMMETER_SERVER_NOTIFY": "json://127.0.0.1:9999/, mailto://a:b@c?to=d,e slack://x/y/z",
        "AMMETER_SERVER_TOKEN_FILE": str(tmp_path / "token"),
        "AMMETER_SERVER_PUBLIC_URL": "https://ammeter.example/",
    }
    found = from_environment({"port": 9001, "host": None}, environment)
    assert ("0.0.0.0", 9001, SECRET) == (found.host, found.port, found.token)
    assert ("json://127.0.0.1:9999/", "mailto://a:b@c?to=d,e", "slack://x/y/z") == found.notify
    assert "https://ammeter.example" == found.page_url


def test_trusted_proxies_are_networks_and_none_by_itself() -> None:
    found = from_environment(environment={"AMMETER_SERVER_TRUSTED_PROXIES": "127.0.0.1, 10.1.2.3/16 ::1,2001:db8::/32"})
    assert ("127.0.0.1/32", "10.1.0.0/16", "::1/128", "2001:db8::/32") == found.trusted_proxies
    assert () == from_environment(environment={}).trusted_proxies


def test_the_objectives_are_shares() -> None:
    plain = from_environment(environment={})
    asked = from_environment(
        environment={"AMMETER_SERVER_OBJECTIVE_RUNS": "0.9", "AMMETER_SERVER_OBJECTIVE_STEPS": " .995"}
    )
    assert (0.95, 0.99) == (plain.objective_runs, plain.objective_steps)
    assert (0.9, 0.995) == (asked.objective_runs, asked.objective_steps)


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("PORT", "lots", "use a number from 1 to 65535"),
        ("PORT", "0", "use a number from 1 to 65535"),
        ("PORT", "70000", "use a number from 1 to 65535"),
        ("HOST", "0.0.0.0", "AMMETER_SERVER_TOKEN_FILE"),
        ("HOST", "collector.example", "AMMETER_SERVER_TOKEN_FILE"),
        ("DATABASE_URL", "what", "use sqlite:////folder/collector.db"),
        ("DATABASE_URL", "mysql://x/y", "use sqlite:////folder/collector.db"),
        ("DATABASE_URL", "sqlite://", "use sqlite:////folder/collector.db"),
        ("NOTIFY", "somebody", "use an Apprise URL"),
        ("ALERTMANAGER_URL", "am:9093", "use a URL such as http://127.0.0.1:9093"),
        ("RUNBOOK_URL", "wiki", "use a URL such as https://wiki.example/ammeter"),
        ("RUNBOOK_URL", "ftp://wiki/x", "use a URL such as https://wiki.example/ammeter"),
        ("RUNBOOK_URL", "https://wiki/{verdict}", "one with {id} where the runbook's name belongs"),
        ("GRAFANA_URL", "grafana", "use a URL such as https://grafana.example"),
        ("GRAFANA_URL", "https://user:word@grafana.example", "without a user and a password"),
        ("ALERTMANAGER_PAGE", "javascript://x", "use a URL such as https://grafana.example"),
        ("LOG_URL", "https://logs.example/all", "which names no run"),
        ("LOG_URL", "https://logs.example/{pod}", "which names no run"),
        ("LOG_URL", "ftp://logs.example/{run}", "use a URL such as https://logs.example"),
        ("TOKEN_FILE", "/no/such/file", "name a readable file"),
        ("TRUSTED_PROXIES", "proxy.example", "use addresses or networks such as 127.0.0.1 10.1.0.0/16"),
        ("TRUSTED_PROXIES", "10.0.0.0/33", "use addresses or networks such as 127.0.0.1 10.1.0.0/16"),
        ("TRUSTED_PROXIES", "*", "use addresses or networks such as 127.0.0.1 10.1.0.0/16"),
        ("KEEP_DAYS", "a while", "use a number of days such as 90"),
        ("KEEP_DAYS", "-1", "use a number of days such as 90"),
        ("KEEP_BYTES", "much", "use a size such as 50G"),
        ("OBJECTIVE_RUNS", "all", "use a share above 0.5 and below 1, such as 0.99"),
        ("OBJECTIVE_RUNS", "95", "use a share above 0.5 and below 1"),
        ("OBJECTIVE_STEPS", "1", "use a share above 0.5 and below 1"),
        ("OBJECTIVE_STEPS", "0.5", "use a share above 0.5 and below 1"),
        ("OBJECTIVE_STEPS", "nan", "use a share above 0.5 and below 1"),
    ],
)
def test_a_setting_that_cannot_be_is_named_with_its_remedy(name: str, value: str, remedy: str) -> None:
    with pytest.raises(SettingsError) as wrong:
        from_environment(environment={f"AMMETER_SERVER_{name}": value})
    assert f"AMMETER_SERVER_{name}" in str(wrong.value)
    assert remedy in str(wrong.value)


@pytest.mark.parametrize(("said", "size"), [("1000", 1000), ("50G", 50 * 2**30), ("2 TiB", 2**41), ("3mb", 3 * 2**20)])
def test_how_much_and_how_long_is_kept_can_be_said(said: str, size: int) -> None:
    environment = {"AMMETER_SERVER_KEEP_BYTES": said, "AMMETER_SERVER_KEEP_DAYS": "90"}
    found = from_environment(environment=environment)
    assert (90, size) == (found.keep_days, found.keep_bytes)
    assert (0, 0) == (Settings().keep_days, Settings().keep_bytes)


@pytest.mark.parametrize("content", ["", "short", "two words of more than sixteen characters"])
def test_a_token_file_holds_one_long_token(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(SettingsError, match="openssl rand"):
        from_environment(environment={"AMMETER_SERVER_TOKEN_FILE": str(tmp_path / "token")})


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.1.2.3"])
def test_loopback_needs_no_token(host: str) -> None:
    assert host in Settings(host=host).page_url


def test_secrets_do_not_show_in_the_settings_text() -> None:
    shown = repr(Settings(token=SECRET, notify=("slack://secret/a/b",)))
    assert SECRET not in shown
    assert "secret" not in shown


def test_urls_are_split_at_commas_and_spaces() -> None:
    assert ("a://x", "b://y?to=1,2", "c://z") == urls(" a://x,b://y?to=1,2   c://z, ")
    assert () == urls(" , ")
