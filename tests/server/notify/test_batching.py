from __future__ import annotations

from ammeter_server.notify.batching import LONGEST, QUIET, Gathering

NOW = 10**18
MOMENT = QUIET // 2


def test_nobody_waits_for_nothing() -> None:
    assert not Gathering().waits(NOW)


def test_a_run_that_breaks_alone_is_told_a_moment_later() -> None:
    gathering = Gathering()
    assert gathering.waits(NOW, told=True)
    assert gathering.waits(NOW + QUIET - 1)
    assert not gathering.waits(NOW + QUIET)
    assert not gathering.waits(NOW + QUIET + 1)


def test_many_are_told_as_soon_as_no_more_of_them_break() -> None:
    gathering = Gathering()
    assert [True] * 4 == [gathering.waits(NOW + look * MOMENT, told=True) for look in range(4)]
    assert gathering.waits(NOW + 4 * MOMENT)
    assert not gathering.waits(NOW + 5 * MOMENT)


def test_nobody_knows_whether_it_is_quiet_before_a_look_is_over() -> None:
    gathering = Gathering()
    assert gathering.waits(NOW, told=True, more=True)
    assert gathering.waits(NOW + 3 * QUIET, more=True)
    assert not gathering.waits(NOW + 3 * QUIET)


def test_a_run_that_is_judged_again_and_again_keeps_nobody_waiting() -> None:
    gathering = Gathering()
    looks = [NOW + look * MOMENT for look in range(4)]
    assert gathering.waits(looks[0], told=True, more=True)
    assert [True, False, False] == [gathering.waits(at, more=True) and gathering.waits(at) for at in looks[1:]]


def test_they_are_told_in_time_where_others_go_on_to_break_and_those_without_waiting() -> None:
    gathering = Gathering()
    looks = LONGEST // MOMENT
    waited = [gathering.waits(NOW + look * MOMENT, told=True) for look in range(2 * looks)]
    assert [True] * looks + [False] * looks == waited
    assert not gathering.waits(NOW + 2 * looks * MOMENT + QUIET)
    assert gathering.waits(NOW + 2 * looks * MOMENT + QUIET + 1, told=True)
