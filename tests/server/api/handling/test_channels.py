from __future__ import annotations

from pathlib import Path

from ammeter_server.auth import tokens
from tests.server.browsing import broken_run
from tests.server.callers import bearer, guarded
from tests.server.feeding import serving, wait_until

API = "/api/v1/channels"
CHANGE = {"X-Ammeter-Request": "test"}
NOTIFY = ("json://user:secret-word@127.0.0.1:9/hidden-path",)


def test_a_channel_has_its_deliveries_and_no_secret(tmp_path: Path) -> None:
    with serving(tmp_path, notify=NOTIFY, grafana_url="https://grafana.example") as client:
        stream = broken_run(client, name="night")
        (channel,) = wait_until(lambda: [item for item in client.get(API).json()["items"] if item["deliveries"]])
        assert (False, []) == (channel["stateful"], channel["receives"])
        delivery = channel["deliveries"][0]
        assert (stream.run, "night", "opened") == tuple(delivery[key] for key in ("run", "run_name", "kind"))
        assert ["board"] == list(delivery["links"])
        assert delivery["links"]["board"].endswith(f"var-run={stream.run}")
        answer = client.post(f"{API}/{channel['name']}/test", headers=CHANGE)
        assert "127.0.0.1" in answer.json()["error"]
        for told in (answer.text, client.get(API).text):
            assert "secret-word" not in told
            assert "hidden-path" not in told
        assert "channel.tested" in [record["action"] for record in client.get("/api/v1/audit").json()["items"]]
        assert 404 == client.post(f"{API}/nobody/test", headers=CHANGE).status_code


def test_a_test_needs_the_scope_admin_and_the_header_of_changes(tmp_path: Path) -> None:
    with serving(tmp_path, notify=NOTIFY) as client:
        name = client.get(API).json()["items"][0]["name"]
        assert 403 == client.post(f"{API}/{name}/test").status_code
    with guarded(tmp_path, notify=NOTIFY) as guard:
        reader = tokens.create(guard.store, "reader", ["read"])
        admin = tokens.create(guard.store, "admin", ["admin"])
        path = f"{API}/{name}/test"
        assert 403 == guard.client.post(path, headers=CHANGE | bearer(reader)).status_code
        assert 200 == guard.client.post(path, headers=bearer(admin)).status_code
