from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ammeter_server.judging.run_state import LATE_RANKS_NS, RESTART_NS, restarting, run_end
from tests.server.judged_runs import NOW


class Life(msgspec.Struct):
    id: str
    rank: int = 0
    role: str = "rank"
    schema: str = "0"
    started: int = 1
    last_seen: int = NOW
    last_step_time: int | None = None
    bye_reason: str | None = None
    bye: dict[str, int] = {}


def over(name: str, rank: int, reason: str = "closed", **said: Any) -> Life:
    return Life(name, rank, bye_reason=reason, bye={"time": 5}, **said)


@pytest.mark.parametrize(
    ("expected", "lives", "silent", "world_size"),
    [
        ("running", [], (), 1),
        ("running", [Life("a")], (), 1),
        ("running", [over("a", 0), Life("b", 1)], (), 2),
        ("running", [over("a", 0)], (), 2),
        ("ended", [over("a", 0, last_seen=NOW - LATE_RANKS_NS - 1)], (), 2),
        ("ended", [over("a", 0), over("b", 1)], (), 2),
        ("lost", [over("a", 0), over("b", 1, "lost")], (), 2),
        ("lost", [over("a", 0), Life("b", 1)], ("b",), 2),
        ("running", [over("a", 0, "lost"), Life("b", 0, started=2)], (), 1),
        ("ended", [over("a", 0), Life("h", role="host")], (), 1),
        ("running", [Life("h", role="host")], (), 1),
    ],
)
def test_a_run_is_over_when_the_last_life_of_each_rank_is(
    expected: str, lives: list[Any], silent: tuple[str, ...], world_size: int
) -> None:
    assert expected == run_end(lives, silent, world_size, NOW)[0]


@pytest.mark.parametrize(
    ("expected", "lives", "said"),
    [
        ({"a"}, [over("a", 0, "lost")], "1"),
        ({"a", "b"}, [over("a", 0, "signal"), over("b", 1, "lost")], "2"),
        (set(), [over("a", 0, "signal")], "0"),
        ({"c"}, [over("a", 0, "lost"), over("c", 0, "lost", started=2)], "2"),
        (set(), [over("a", 0, "lost"), over("c", 0, "lost", started=2)], "1"),
        (set(), [over("a", 0, "lost"), Life("c", 0, started=2)], "2"),
        (set(), [over("a", 0, "lost", last_seen=NOW - RESTART_NS)], "1"),
        (set(), [over("a", 0, "exception")], "1"),
        (set(), [Life("a")], "1"),
        (set(), [], "1"),
        *((set(), [over("a", 0, "lost")], said) for said in ("0", "", "-1", "many", "9" * 5000, None)),
    ],
)
def test_a_restart_is_awaited_as_often_as_the_launcher_starts_again(
    expected: set[str], lives: list[Any], said: Any
) -> None:
    assert expected == restarting(lives, None if said is None else {"max_restarts": said}, NOW)
