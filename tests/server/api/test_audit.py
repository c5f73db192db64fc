from __future__ import annotations

from pathlib import Path
from typing import Any

from ammeter_server.auth import tokens
from tests.server.callers import Guarded, bearer, guarded
from tests.server.feeding import Stream, break_down, train, wait_until


def deeds(place: Guarded, token: str, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = place.client.get(f"/api/v1/audit{query}", headers=bearer(token)).json()["items"]
    return found


def told(place: Guarded, token: str) -> list[tuple[str, str, str]]:
    return [(deed["who"], deed["action"], deed["subject"]) for deed in reversed(deeds(place, token))]


def test_what_people_did_is_told_with_who_did_it(tmp_path: Path) -> None:
    with guarded(tmp_path) as place:
        owner = tokens.create(place.store, "owner", ("admin",), by="command line (ada)")
        tokens.create(place.store, "speech", ("ingest",), "speech", by="command line (ada)")
        tokens.revoke(place.store, "speech", by="command line (eve)")
        incident = broken(place, owner)
        for what in ("acknowledge", "acknowledge", "close"):
            assert 200 == place.client.post(f"/api/v1/incidents/{incident}/{what}", headers=bearer(owner)).status_code
        assert 204 == place.client.post("/api/v1/session", json={"token": owner}).status_code
        assert [
            ("command line (ada)", "token.created", "owner"),
            ("command line (ada)", "token.created", "speech"),
            ("command line (eve)", "token.revoked", "speech"),
            ("owner", "incident.acknowledged", incident),
            ("owner", "incident.closed", incident),
            ("owner", "session.opened", "page"),
        ] == told(place, owner)
        assert owner not in str(deeds(place, owner))


def broken(place: Guarded, token: str) -> str:
    stream = Stream(place.client, headers=bearer(token))
    train(stream, 0, 40)
    break_down(stream, 41, 60)
    stream.send()
    path = f"/api/v1/runs/{stream.run}/incidents"
    items = wait_until(lambda: place.client.get(path, headers=bearer(token)).json()["items"])
    return str(items[0]["id"])


def test_what_people_did_is_paged_through_without_a_gap(tmp_path: Path) -> None:
    with guarded(tmp_path) as place:
        owner = tokens.create(place.store, "owner", ("admin",))
        names = [f"token {number}" for number in range(7)]
        for name in names:
            tokens.create(place.store, name, ("read",))
        found: list[str] = []
        query: str | None = "?page_size=3"
        while query:
            answer = place.client.get(f"/api/v1/audit{query}", headers=bearer(owner)).json()
            found += [deed["subject"] for deed in answer["items"]]
            page = answer["next_page_token"]
            query = page and f"?page_size=3&page_token={page}"
    assert ["owner", *names] == found[::-1]
