"""Several losses of a run at the collector: stored, in the series, on the page; and of which step the last ones are."""

from __future__ import annotations

from pathlib import Path

import msgspec
from selenium import webdriver

from tests.server.browsing import appears, show
from tests.server.feeding import SCHEMA, Stream, curves, serving

CRITIC, MAKER = "loss@gan.py:28", "loss@gan.py:42"


def test_each_loss_is_a_series_and_a_line_on_the_page(browser: webdriver.Chrome, tmp_path: Path) -> None:
    schema = msgspec.structs.replace(SCHEMA, scalars=(*SCHEMA.scalars, CRITIC, MAKER))
    with serving(tmp_path) as client:
        stream = Stream(client, schema=schema)
        for step in range(50):
            norm = {"grad_norm": 2.0} if step < 30 else {}
            stream.tell(step, {"applied": 2, "skipped": 0, CRITIC: 1.5, MAKER: 0.75, **norm})
        stream.send()
        document = client.get(f"/api/v1/runs/{stream.run}/series", params={"names": f"{CRITIC},{MAKER},loss"}).json()
        assert [(CRITIC, [1.5] * 50), (MAKER, [0.75] * 50)] == [
            (curve["name"], curve["values"]) for curve in curves(document)
        ]
        run = client.get(f"/api/v1/runs/{stream.run}").json()
        assert (1.5, 0.75) == (run["latest"][CRITIC], run["latest"][MAKER])
        assert (49, 29) == (run["latest"]["loss_step"], run["latest"]["grad_norm_step"])
        assert 30 == run["counters"]["grad_norms_read"]
        show(browser, client, f"/runs/{stream.run}")
        figures = appears(browser, ".figures", CRITIC)
        assert f"1.5\n{CRITIC}, {MAKER} 0.75" in figures
        assert "last measured at step 29, measured in 30 of 50 steps" in figures
        assert MAKER in appears(browser, "#charts", MAKER)
        show(browser, client, "/")
        assert "1.5 · 0.75" in appears(browser, ".runs tbody", "nightly")
        browser.get("about:blank")
