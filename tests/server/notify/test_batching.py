from __future__ import annotations

from ammeter_server.notify.batching import MAX_WAIT_NS, QUIET_NS, NotificationBatch

NOW = 10**18
MOMENT = QUIET_NS // 2


def test_nobody_waits_for_nothing() -> None:
    assert not NotificationBatch().should_wait(NOW)


def test_a_run_that_breaks_alone_is_told_a_moment_later() -> None:
    gathering = NotificationBatch()
    assert gathering.should_wait(NOW, new_alert=True)
    assert gathering.should_wait(NOW + QUIET_NS - 1)
    assert not gathering.should_wait(NOW + QUIET_NS)
    assert not gathering.should_wait(NOW + QUIET_NS + 1)


def test_many_are_told_as_soon_as_no_more_of_them_break() -> None:
    gathering = NotificationBatch()
    assert [True] * 4 == [gathering.should_wait(NOW + look * MOMENT, new_alert=True) for look in range(4)]
    assert gathering.should_wait(NOW + 4 * MOMENT)
    assert not gathering.should_wait(NOW + 5 * MOMENT)


def test_nobody_knows_whether_it_is_quiet_before_a_look_is_over() -> None:
    gathering = NotificationBatch()
    assert gathering.should_wait(NOW, new_alert=True, more=True)
    assert gathering.should_wait(NOW + 3 * QUIET_NS, more=True)
    assert not gathering.should_wait(NOW + 3 * QUIET_NS)


def test_a_run_that_is_judged_again_and_again_keeps_nobody_waiting() -> None:
    gathering = NotificationBatch()
    looks = [NOW + look * MOMENT for look in range(4)]
    assert gathering.should_wait(looks[0], new_alert=True, more=True)
    assert [True, False, False] == [
        gathering.should_wait(at, more=True) and gathering.should_wait(at) for at in looks[1:]
    ]


def test_they_are_told_in_time_where_others_go_on_to_break_and_those_without_waiting() -> None:
    gathering = NotificationBatch()
    looks = MAX_WAIT_NS // MOMENT
    waited = [gathering.should_wait(NOW + look * MOMENT, new_alert=True) for look in range(2 * looks)]
    assert [True] * looks + [False] * looks == waited
    assert not gathering.should_wait(NOW + 2 * looks * MOMENT + QUIET_NS)
    assert gathering.should_wait(NOW + 2 * looks * MOMENT + QUIET_NS + 1, new_alert=True)
