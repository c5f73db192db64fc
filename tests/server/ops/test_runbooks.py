from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ammeter.verdicts import ALL
from ammeter_server.__main__ import main
from ammeter_server.incidents import runbook_text
from ammeter_server.ops import runbooks
from tests.server.feeding import serving


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    token = "0123456789abcdef0123456789abcdef"
    with serving(tmp_path_factory.mktemp("collector"), token=token) as client:
        yield client


@pytest.mark.parametrize("verdict", [*(verdict.id for verdict in ALL), *runbooks.OF_ALERTS])
def test_every_verdict_and_alert_has_a_runbook_that_opens_without_a_token(client: httpx.Client, verdict: str) -> None:
    answer = client.get(f"/runbooks/{verdict}")
    assert 200 == answer.status_code
    assert answer.headers["content-type"].startswith("text/html")
    assert '<article class="text"><h1>' in answer.text
    assert answer.text.count("<p>") >= 2


def test_the_checklist_opens_and_every_runbook_leads_to_it(client: httpx.Client) -> None:
    answer = client.get("/runbooks/checklist")
    assert 200 == answer.status_code
    steps = (
        "logs",
        "loss scale",
        "gradients",
        "last checkpoint",
        "Hardware and driver",
        "Resume in float32",
        "smallest part",
    )
    places = [answer.text.index(step) for step in steps]
    assert sorted(places) == places
    assert 'href="/runbooks/checklist"' in client.get("/runbooks/scale-collapse").text


def test_the_index_leads_to_every_runbook_without_a_token(client: httpx.Client) -> None:
    answer = client.get("/runbooks/")
    assert 200 == answer.status_code
    assert sorted(f"/runbooks/{name}" for name in runbooks.TITLES) == sorted(
        re.findall(r'href="(/runbooks/.+?)"', answer.text)
    )


def test_an_unknown_verdict_is_a_404_that_names_those_there_are(client: httpx.Client) -> None:
    answer = client.get("/runbooks/..%2f..%2fsettings")
    assert 404 == answer.status_code
    unknown = client.get("/runbooks/bad-mood")
    assert 404 == unknown.status_code
    assert "there is no verdict 'bad-mood'; there are" in unknown.json()["detail"]
    assert "scale-collapse" in unknown.json()["detail"]


def test_html_in_a_runbook_is_shown_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.md").write_text(
        "# Title\n\n<script>alert(1)</script> [a](javascript:alert(1))\n\n| a |\n|---|\n| b |\n"
    )
    monkeypatch.setattr(runbook_text, "FOLDER", tmp_path)
    html = runbooks.rendered.__wrapped__("x")
    assert "<script>" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert 'href="javascript' not in html
    assert "<td>b</td>" in html


def test_all_of_them_can_be_read_without_a_collector(tmp_path: Path) -> None:
    """From a folder, by any web server: links lead to what lies there."""
    assert 0 == main(["runbooks", str(tmp_path / "www")])
    assert sorted(runbooks.TITLES) == sorted(path.name for path in (tmp_path / "www").iterdir() if path.is_dir())
    for page in (tmp_path / "www").glob("**/index.html"):
        links = re.findall(r'href="([^"#]+)"', page.read_text())
        assert links or page.parent.name == "checklist"
        assert "&#34;../" not in page.read_text()
        for link in links:
            assert link.startswith("http") or (page.parent / link / "index.html").is_file(), (page, link)


def test_a_folder_that_cannot_be_is_said_with_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert 2 == main(["runbooks", str(tmp_path / "file" / "www")])
    assert "use a writable folder" in capsys.readouterr().err
