from __future__ import annotations

from pathlib import Path

import pytest

from ammeter_server.config.notify_routes import Route, read
from ammeter_server.config.settings import Settings, SettingsError, from_environment
from ammeter_server.notify.channel import Channel, open_channels
from tests.server.feeding import Stream, break_down, serving, train, wait_until
from tests.server.notify.test_channel import receiving

SECRET = "slack://TOKEN-A/B/C"


def routes(folder: Path, *lines: str) -> tuple[Route, ...]:
    file = folder / "routes"
    file.write_text("\n".join(lines))
    return read(file)


def test_each_line_is_a_url_and_what_it_is_told_about(tmp_path: Path) -> None:
    found = routes(tmp_path, "# who is told", "", SECRET, f"{SECRET}#now severity=page project=speech,vision-*")
    assert (Route(SECRET), Route(f"{SECRET}#now", ("speech", "vision-*"), ("page",))) == found


def test_quotes_keep_signs_that_would_end_a_word(tmp_path: Path) -> None:
    (route,) = routes(tmp_path, f'"{SECRET}?name=it\'s down" project="big model"')
    assert Route(f"{SECRET}?name=it's down", ("big model",)) == route


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("severity=page", "line 2 does not begin with a URL"),
        (f"{SECRET} level=page", "line 2 contains 'level=page'; use severity=... and project=..., once each"),
        (f"{SECRET} severity=page severity=ticket", "line 2 contains 'severity=ticket'"),
        (f"{SECRET} severity=loud", "line 2 contains severity='loud'; use page or ticket, or omit it"),
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


@pytest.mark.parametrize(
    ("channel", "wanted"),
    [
        (Channel("all", print), [True, True, True]),
        (Channel("pages", print, severities=("page",)), [True, False, False]),
        (Channel("vision", print, projects=("vision-*", "maps")), [False, True, False]),
        (Channel("vision pages", print, projects=("vision-*",), severities=("page",)), [False, False, False]),
    ],
    ids=lambda value: value.name if isinstance(value, Channel) else "",
)
def test_a_channel_wants_what_its_line_says(channel: Channel, wanted: list[bool]) -> None:
    kinds = (("speech", "page"), ("vision-small", "ticket"), ("Vision-small", "ticket"))
    assert wanted == [channel.wants(*kind) for kind in kinds]


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
