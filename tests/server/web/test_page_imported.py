"""The page of an imported run says where it comes from, and nothing that its history does not have."""

from __future__ import annotations

from pathlib import Path

from selenium import webdriver

from tests.server.browsing import appears, show
from tests.server.feeding import Stream, serving

FACTS = {"imported_from": "csv", "imported_source": "/data/<b>run</b>.csv", "imported_times": "those of the import"}


def test_what_the_history_does_not_have_is_no_zero(browser: webdriver.Chrome, tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        stream = Stream(client, environment=FACTS)
        for step in range(50):
            stream.tell(step, {"loss": 1.5})
        stream.bye(49)
        stream.send()
        show(browser, client, f"/runs/{stream.run}")
        figures = appears(browser, ".figures", "Skipped steps")
        assert 2 == figures.count("not in the history")
        facts = appears(browser, ".facts", "imported from csv: /data/<b>run</b>.csv")
        assert "started" not in facts
        assert "not judged: not in the imported history" in appears(browser, ".unjudged", "not judged")
        browser.get("about:blank")
