from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from ammeter_server.http import etags
from tests.server.feeding import Stream, break_down, serving, train, wait_until

PATHS = (
    "/",
    "/runs/{run}",
    "/openapi.json",
    "/runbooks/run-lost",
    "/static/api.js",
    "/api/v1/rules",
    "/api/v1/dashboards/debug",
    "/api/v1/incidents",
    "/api/v1/audit",
    "/api/v1/runs",
    "/api/v1/runs/{run}",
    "/api/v1/runs/{run}/events",
    "/api/v1/runs/{run}/incidents",
    "/api/v1/runs/{run}/tensors",
    "/api/v1/runs/{run}/tensors/matrix",
    "/api/v1/runs/{run}/spectrum",
    "/api/v1/runs/{run}/what-if",
    "/api/v1/runs/{run}/series?names=loss",
    "/api/v1/runs/{run}/compare/{run}",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, str]]:
    """A collector with a run that is over and judged, so that nothing of it changes by itself."""
    with serving(tmp_path_factory.mktemp("etags")) as client:
        stream = Stream(client)
        train(stream, 0, 40)
        break_down(stream, 41, 45)
        stream.bye(45)
        stream.send()
        wait_until(lambda: client.get(f"/api/v1/runs/{stream.run}").json()["state"] == "ended")
        wait_until(lambda: client.get(f"/api/v1/runs/{stream.run}/incidents").json()["items"])
        yield client, stream.run


@pytest.mark.parametrize("path", PATHS)
def test_who_has_an_answer_already_is_told_so_without_a_body(place: tuple[httpx.Client, str], path: str) -> None:
    client, url = place[0], path.format(run=place[1])
    first = client.get(url)
    tag = first.headers["ETag"]
    for known in (tag, f'"another", {tag}', tag.removeprefix("W/")):
        again = client.get(url, headers={"If-None-Match": known})
        assert (304, b"", tag) == (again.status_code, again.content, again.headers["ETag"]), known
        assert {"content-type", "content-length"}.isdisjoint(again.headers)
    other = client.get(url, headers={"If-None-Match": '"another"'})
    assert (200, first.content) == (other.status_code, other.content)
    assert 304 == client.head(url, headers={"If-None-Match": tag}).status_code


def test_what_has_changed_is_told_anew(place: tuple[httpx.Client, str]) -> None:
    client, run = place
    urls = [f"/api/v1/runs/{run}/incidents", f"/api/v1/runs/{run}", "/api/v1/audit"]
    tags = [client.get(url).headers["ETag"] for url in urls]
    (incident,) = client.get(urls[0]).json()["items"]
    client.post(f"/api/v1/incidents/{incident['id']}/close", headers={"X-Ammeter-Request": "test"})
    answers = [client.get(url, headers={"If-None-Match": tag}) for url, tag in zip(urls, tags, strict=True)]
    assert [200] * 3 == [answer.status_code for answer in answers]
    assert not {answer.headers["ETag"] for answer in answers} & set(tags)


@pytest.mark.parametrize("path", ["/metrics", "/metrics/self", "/livez", "/readyz", "/api/v1/runs/nobody"])
def test_what_is_never_the_same_and_what_went_wrong_has_no_tag(place: tuple[httpx.Client, str], path: str) -> None:
    answer = place[0].get(path, headers={"If-None-Match": "*"})
    assert 304 != answer.status_code
    assert "ETag" not in answer.headers


def test_a_large_answer_is_not_compared(place: tuple[httpx.Client, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etags, "MAX_HASHED_BYTES", 10)
    answer = place[0].get("/api/v1/rules", headers={"If-None-Match": "*"})
    assert (200, False) == (answer.status_code, "ETag" in answer.headers)
    assert answer.content.startswith(b"# Generated")
