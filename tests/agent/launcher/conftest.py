"""Programs of a test file, launched by `ammeter run`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.agent.launching import launch
from tests.agent.programs import Ended, Program


@pytest.fixture(scope="module")
def ended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Ended]]:
    """The ended programs in PROGRAMS of the test file, by name.

    They run two at a time, because importing torch is most of their work.
    """
    programs = request.module.PROGRAMS
    folder = tmp_path_factory.mktemp("launched")
    started: dict[str, Program] = {}
    done: dict[str, Ended] = {}
    names = iter(programs)

    def get(name: str) -> Ended:
        while name not in done:
            for other in names:
                started[other] = launch(folder=folder / other.replace(" ", "-"), **programs[other])
                if len(started) == 2:
                    break
            first = name if name in started else next(iter(started))
            done[first] = started.pop(first).end()
        return done[name]

    yield get
    for program in started.values():
        program.end()
