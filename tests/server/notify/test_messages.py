from __future__ import annotations

from typing import Any

import msgspec
import pytest
import requests

from ammeter_server.config.links import Links
from ammeter_server.config.settings import Settings
from ammeter_server.incidents.lifecycle import Incident
from ammeter_server.notify.channel import open_channels
from ammeter_server.notify.messages import alert, message
from ammeter_server.runs.ownership import RunLabels

INCIDENT = Incident(
    run="5f3c0f2e-0000-4000-8000-000000000000",
    id="5f3c0f2e-0000-4000-8000-000000000000.scale-collapse.1",
    verdict="scale-collapse",
    number=1,
    severity="page",
    title="The scale collapses",
    state="open",
    times=1,
    opened=1,
    first_step=60,
    opened_step=64,
    last_step=70,
    stream="s",
    rank=3,
    cause="Every step since 60 was skipped.",
    fix="Stop and mend blocks.2.",
    tensor="blocks.2.mlp.fc.weight",
    consequences=[{"verdict": "overflow-storm", "severity": "ticket", "title": "Storm", "first_step": 60, "cause": ""}],
)


SPEECH = RunLabels("night run", "speech", "anna", "0a1b2c3d")


def test_a_message_says_what_why_what_to_do_and_where_to_look() -> None:
    sent = message("opened", INCIDENT, SPEECH, Links("http://collector.example"))
    assert "[page] The scale collapses: night run, step 60" == sent["title"]
    for line in (
        "Cause: Every step since 60 was skipped.",
        "Fix: Stop and mend blocks.2.",
        "Verdict: scale-collapse (page)",
        "Run: night run (5f3c0f2e-0000-4000-8000-000000000000)",
        "Project: speech",
        "Owner: anna",
        "Commit: 0a1b2c3d",
        "Step: 60, found at 64, last seen at 70",
        "Rank: 3",
        "Tensor: blocks.2.mlp.fc.weight",
        "Also: Storm",
        "Page: http://collector.example/runs/5f3c0f2e-0000-4000-8000-000000000000#scale-collapse",
        "Runbook: http://collector.example/runbooks/scale-collapse",
    ):
        assert line in sent["body"].splitlines()


def test_a_runs_own_words_stay_on_one_line() -> None:
    sent = message("resolved", INCIDENT, RunLabels("night\nPage: http://evil" + "x" * 1000, "p"), Links("http://c"))
    assert sent["title"].startswith("[resolved] The scale collapses: night Page: http:\u200c//evilxxx")
    assert 1 == sum(line.startswith("Page: ") for line in sent["body"].splitlines())
    assert max(map(len, sent["body"].splitlines())) < 400


EVIL = "@everyone <!channel> <@U1> <@&12> [x](https://evil.example) ` \u202e\nPage: https://evil.example @here"
EVIL_RUN = RunLabels(EVIL, EVIL, EVIL, EVIL)
TO_CHATS = {
    "slack": "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/",
    "slack as Markdown": "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/?format=markdown",
    "discord": "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js",
    "discord as Markdown": "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js?format=markdown",
    "teams": "workflows://azure.example:443/643e69dc6daa4e3e8a4f/W4_RE2tOLcc7BcZk0gNJ",
    "mattermost": "mmost://127.0.0.1/3ccdd113474722377935511fc85d3dd4",
    "telegram": "tgram://123456789:abcdefg_hijklmnop/12315544/",
}


@pytest.mark.parametrize("chat", TO_CHATS)
def test_what_a_run_is_called_does_nothing_in_a_chat(chat: str, monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[str] = []

    def request(_: Any, method: str, url: str, **more: Any) -> requests.Response:
        posted.append(str(more.get("data") or more.get("json")))
        answer = requests.Response()
        answer.status_code, answer._content = 200, b"ok" if "slack" in url else b'{"ok": true, "result": []}'
        return answer

    monkeypatch.setattr(requests.Session, "request", request)
    incident = msgspec.structs.replace(INCIDENT, cause=f"Tensor {EVIL} is NaN.", tensor=EVIL, module=EVIL, caller=EVIL)
    (channel,) = open_channels(Settings(notify=(TO_CHATS[chat],))).values()
    channel.send([message("opened", incident, EVIL_RUN, Links("http://collector.example"))])
    assert posted
    text = "\n".join(posted)
    text = "\n".join(
        [
            text,
            text.encode().decode("unicode_escape", "replace").encode("latin-1", "replace").decode("utf-8", "replace"),
        ]
    )
    assert "night" not in text
    for active in ("@everyone", "@here", "<!channel", "<@U1", "<@&", "](https", "allow_mentions", "\u202e"):
        assert active not in text, active
    assert "evil.example" in text


def test_what_a_run_is_called_does_nothing_in_an_annotation() -> None:
    incident = msgspec.structs.replace(INCIDENT, cause=f"Tensor {EVIL} is NaN.", tensor=EVIL, title=EVIL)
    sent = message("opened", incident, EVIL_RUN, Links("http://collector.example"))
    notes = alert(incident, sent["body"], EVIL_RUN, Links("http://collector.example"))["annotations"]
    for value in notes.values():
        assert not any(active in value for active in ("@everyone", "@here", "<!channel", "<@U1", "](https", "\u202e"))
    assert 1 == len(notes["summary"].splitlines())
    assert 1 == sum(line.startswith("Page: ") for line in notes["description"].splitlines())
