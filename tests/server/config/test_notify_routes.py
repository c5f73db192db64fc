from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ammeter.verdicts import ALL
from ammeter_server.config.notify_routes import Filter, Route, Subject, read
from ammeter_server.config.settings import Settings, SettingsError, from_environment
from ammeter_server.incidents.verdict_classes import PLATFORM, class_of
from ammeter_server.notify.channel import Channel, open_channels, receivers
from tests.house.tree import ROOT
from tests.server.feeding import Stream, break_down, serving, train, wait_until
from tests.server.notify.test_channel import receiving

SECRET = "slack://TOKEN-A/B/C"


def routes(folder: Path, *lines: str) -> tuple[Route, ...]:
    file = folder / "routes"
    file.write_text("\n".join(lines))
    return read(file)


def test_each_line_is_a_url_and_what_it_is_told_about(tmp_path: Path) -> None:
    found = routes(tmp_path, "# who is told", "", SECRET, f"{SECRET}#now severity=page project=speech,vision-*")
    assert (Route(SECRET), Route(f"{SECRET}#now", Filter(("speech", "vision-*"), ("page",)))) == found


def test_quotes_keep_signs_that_would_end_a_word(tmp_path: Path) -> None:
    (route,) = routes(tmp_path, f'"{SECRET}?name=it\'s down" project="big model"')
    assert Route(f"{SECRET}?name=it's down", Filter(("big model",))) == route


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("severity=page", "line 2 does not begin with a URL"),
        (
            f"{SECRET} level=page",
            "line 2 contains 'level=page'; use severity=..., project=..., owner=..., verdict=..., class=...",
        ),
        (f"{SECRET} severity=page severity=ticket", "line 2 contains 'severity=ticket'"),
        (f"{SECRET} severity=loud", "line 2 contains severity='loud'; use page or ticket, or omit it"),
        (f"{SECRET} class=hardware", "line 2 contains class='hardware'; use ml or platform, or omit it"),
        (f"{SECRET} otherwise otherwise", "line 2 contains 'otherwise'"),
        (f"{SECRET}?name=it's", "line 2: No closing quotation; enclose a URL with quotes in"),
    ],
)
def test_a_line_that_cannot_be_is_named_by_its_number_and_never_by_its_url(
    tmp_path: Path, line: str, said: str
) -> None:
    (tmp_path / "routes").write_text(f"{SECRET}\n{line}\n")
    with pytest.raises(SettingsError) as wrong:
        from_environment(environment={"AMMETER_SERVER_NOTIFY_FILE": str(tmp_path / "routes")})
    assert said in str(wrong.value)
    assert "name a readable file" in str(wrong.value)
    assert "TOKEN" not in str(wrong.value)


def channel(name: str, **conditions: Any) -> Channel:
    return Channel(name, print, filter=Filter(**conditions))


@pytest.mark.parametrize(
    ("channel", "wanted"),
    [
        (channel("all"), [True, True, True]),
        (channel("pages", severities=("page",)), [True, False, False]),
        (channel("vision", projects=("vision-*", "maps")), [False, True, False]),
        (channel("vision pages", projects=("vision-*",), severities=("page",)), [False, False, False]),
        (channel("of anna", owners=("anna*",)), [True, False, False]),
        (channel("scales", verdicts=("scale-*",)), [True, False, False]),
        (channel("machines", classes=("platform",)), [False, True, False]),
        (channel("training", classes=("ml",)), [True, False, True]),
    ],
    ids=lambda value: value.name if isinstance(value, Channel) else "",
)
def test_a_channel_wants_what_its_line_says(channel: Channel, wanted: list[bool]) -> None:
    kinds = (
        Subject("speech", "page", "anna@lab", "scale-collapse", "ml"),
        Subject("vision-small", "ticket", "", "run-lost", "platform"),
        Subject("Vision-small", "ticket", "ben", "lost-updates", "ml"),
    )
    assert wanted == [channel in receivers([channel], kind) for kind in kinds]


def test_the_channel_for_the_rest_hears_what_no_other_filter_wants() -> None:
    plain, anna, rest = channel("all"), channel("anna", owners=("anna",)), channel("rest", otherwise=True)
    pages = channel("rest of the pages", otherwise=True, severities=("page",))
    every = [plain, anna, rest, pages]
    assert [plain, anna] == receivers(every, Subject("speech", "page", "anna"))
    assert [plain, rest, pages] == receivers(every, Subject("speech", "page", "ben"))
    assert [plain, rest] == receivers(every, Subject("speech", "ticket"))


def test_the_platform_has_verdicts_that_exist_and_training_the_others() -> None:
    known = {verdict.id for verdict in ALL}
    assert set() == PLATFORM - known
    assert {"platform": len(PLATFORM), "ml": len(known) - len(PLATFORM)} == Counter(map(class_of, known))
    assert "ml" == class_of("a verdict of a later version")


def test_every_verdict_of_the_platform_is_in_the_document() -> None:
    document = (ROOT / "docs" / "operate.md").read_text()
    listed = document.partition("The verdicts of `class=platform`")[2].partition("\n\n")[0]
    assert PLATFORM == set(re.findall(r"`([a-z0-9-]+)`", listed))


def test_two_lines_of_one_url_are_two_channels_and_no_name_holds_the_url(tmp_path: Path) -> None:
    url = "json://user:TOKEN-A@127.0.0.1:9/"
    channels = open_channels(Settings(routes=routes(tmp_path, f"{url} project=a", f"{url} project=b")))
    assert 2 == len(channels)
    assert [] == [name for name in channels if "TOKEN" in name]


def test_each_project_is_told_to_its_own_and_nobody_else(tmp_path: Path) -> None:
    with receiving() as speech, receiving() as vision:
        said = routes(tmp_path, f"{speech.url} project=speech severity=page", f"{vision.url} project=vision-*")
        with serving(tmp_path, routes=said) as client:
            for project in ("maps", "vision-small", "speech"):
                stream = Stream(client, project=project, name=f"of {project}")
                train(stream, 0, 40)
                break_down(stream, 41, 60)
                stream.send()
            wait_until(lambda: speech.said and vision.said)
            wait_until(lambda: 3 <= len(client.get("/api/v1/incidents").json()["items"]))
    assert {"of speech"} == {line for message in speech.said for line in words(message)}
    assert {"of vision-small"} == {line for message in vision.said for line in words(message)}


def words(said: dict[str, str]) -> list[str]:
    """The runs that a message names."""
    return [name for name in ("of maps", "of vision-small", "of speech") if name in said["title"]]


def test_the_owner_and_the_class_decide_who_is_called(tmp_path: Path) -> None:
    with receiving() as anna, receiving() as machines, receiving() as rest:
        lines = (f"{anna.url} owner=anna class=ml", f"{machines.url} class=platform", f"{rest.url} otherwise")
        with serving(tmp_path, routes=routes(tmp_path, *lines)) as client:
            for owner in ("anna", "ben"):
                stream = Stream(client, name=f"of {owner}", tags={"owner": owner})
                train(stream, 0, 40)
                break_down(stream, 41, 60)
                stream.send()
            lost = Stream(client, name="of a dead node", tags={"owner": "anna"})
            train(lost, 0, 40)
            lost.bye(40, "lost")
            lost.send()
            wait_until(lambda: anna.said and machines.said and rest.said)
            wait_until(lambda: 3 <= len(client.get("/api/v1/incidents").json()["items"]))
    heard = [[said["title"] for said in receiver.said] for receiver in (anna, machines, rest)]
    assert [["of anna"], ["of a dead node"], ["of ben"]] == [
        [name for name in ("of anna", "of ben", "of a dead node") if any(name in title for title in titles)]
        for titles in heard
    ]
    assert "Owner: anna" in anna.said[0]["message"].splitlines()
