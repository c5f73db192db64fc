from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.server.feeding import Stream, serving, train

OF_PAGE = {"Sec-Fetch-Site": "same-origin", "Accept-Encoding": "gzip, br"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, str]]:
    with serving(tmp_path_factory.mktemp("compression")) as client:
        stream = Stream(client)
        train(stream, 0, 999)
        stream.send()
        yield client, f"/api/v1/runs/{stream.run}/series?names=loss,grad_norm"


@pytest.mark.parametrize("path", ["/static/run.js", "/static/vendor/uplot/uPlot.esm.js", ""])
def test_the_page_loads_the_same_content_in_fewer_bytes(place: tuple[httpx.Client, str], path: str) -> None:
    client, series = place
    plain = client.get(path or series)
    packed = client.get(path or series, headers=OF_PAGE)
    assert ("gzip", "Accept-Encoding") == (packed.headers["content-encoding"], packed.headers["vary"])
    assert plain.content == packed.content
    assert packed.num_bytes_downloaded < 0.7 * len(plain.content)
    assert int(packed.headers["content-length"]) == packed.num_bytes_downloaded


@pytest.mark.parametrize("path", ["/static/run.js", ""])
def test_a_compressed_response_that_is_known_is_not_sent_again(place: tuple[httpx.Client, str], path: str) -> None:
    client, series = place
    tag = client.get(path or series, headers=OF_PAGE).headers["etag"]
    again = client.get(path or series, headers={**OF_PAGE, "If-None-Match": tag})
    assert (304, b"") == (again.status_code, again.content)
    assert tag.startswith('W/"')


def test_programs_and_small_responses_get_them_as_they_are(place: tuple[httpx.Client, str]) -> None:
    client, series = place
    assert "content-encoding" not in client.get(series, headers={"Accept-Encoding": "gzip"}).headers
    assert "content-encoding" not in client.get("/api/v1/projects/x/baselines", headers=OF_PAGE).headers
    assert "content-encoding" not in client.get(series, headers={**OF_PAGE, "Accept-Encoding": "br"}).headers
