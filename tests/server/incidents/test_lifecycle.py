from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ammeter.verdicts.causality import Explained
from ammeter.verdicts.framework.finding import Finding
from ammeter_server.incidents.lifecycle import (
    COOLDOWN_NS,
    EXPIRY_NS,
    Incident,
    IncidentChange,
    merge_causes,
    reconcile_incidents,
)

RUN = "5f3c0f2e-0000-4000-8000-000000000000"
NOW = 10**18
SECOND = 10**9


def finding(verdict: str = "scale-collapse", severity: Any = "page", **said: Any) -> Finding:
    given: dict[str, Any] = {"first_step": 10, "opened_step": 12, "last_step": 15, "title": "It fell"}
    return Finding(verdict, severity, **{**given, "cause": "why", "fix": "do", **said})


def judged(
    *explained: Explained, before: list[Incident] | None = None, now: int = NOW, **said: Any
) -> list[IncidentChange]:
    causes = merge_causes(explained, said.pop("ranks", {"s": 0}), said.pop("ended", frozenset()))
    return reconcile_incidents(RUN, said.pop("settled", False), causes, before or [], now)


def only(changes: list[IncidentChange]) -> IncidentChange:
    (change,) = changes
    return change


def opened(*explained: Explained, **said: Any) -> Incident:
    return only(judged(*explained, **said)).incident


def test_a_finding_opens_one_incident_and_is_told() -> None:
    change = only(judged(Explained("s", finding(tensor="w", module="m", evidence={"x": float("nan")})), ranks={"s": 3}))
    incident = change.incident
    assert ("opened", True) == (change.notification, change.new)
    assert (f"{RUN}.scale-collapse.1", "open", NOW) == (incident.id, incident.state, incident.opened)
    assert (3, "w", "m", {"x": "NaN"}) == (incident.rank, incident.tensor, incident.module, incident.evidence)


def test_what_does_not_change_is_neither_written_nor_told() -> None:
    explained = Explained("s", finding())
    assert [] == judged(explained, before=[opened(explained)], now=NOW + SECOND)


def test_an_open_incident_follows_its_finding_silently() -> None:
    before = opened(Explained("s", finding()))
    change = only(judged(Explained("s", finding(last_step=99)), before=[before]))
    assert (None, 99, NOW) == (change.notification, change.incident.last_step, change.incident.opened)


def test_several_ranks_with_one_verdict_are_one_incident() -> None:
    change = only(judged(Explained("a", finding()), Explained("b", finding(first_step=11)), ranks={"a": 0, "b": 1}))
    assert (0, 2) == (change.incident.rank, change.incident.times)


def test_an_incident_is_open_while_one_rank_still_holds_it() -> None:
    healed, ill = Explained("a", finding(active=False)), Explained("b", finding())
    assert "open" == opened(healed, ill).state


def test_it_closes_as_recovered_and_that_is_told() -> None:
    before = opened(Explained("s", finding()))
    change = only(judged(Explained("s", finding(active=False)), before=[before], now=NOW + SECOND))
    assert ("resolved", "closed", "recovered", NOW + SECOND) == (
        change.notification,
        change.incident.state,
        change.incident.closed_reason,
        change.incident.closed,
    )


def test_what_is_over_when_it_is_first_seen_is_told_all_the_same() -> None:
    change = only(judged(Explained("s", finding(active=False))))
    assert ("opened", "closed", True) == (change.notification, change.incident.state, change.new)


def recovered() -> Incident:
    before = opened(Explained("s", finding()))
    return only(judged(Explained("s", finding(active=False)), before=[before])).incident


def test_the_same_occurrence_does_not_open_it_again() -> None:
    assert [] == judged(Explained("s", finding(active=False, last_step=15)), before=[recovered()], now=NOW + SECOND)


def test_what_is_learnt_once_it_is_closed_is_written_down() -> None:
    more = Explained("a", finding(active=False, first_step=9))
    change = only(judged(more, before=[recovered()], ranks={"a": 3}, now=NOW + SECOND))
    assert (None, "closed", NOW) == (change.notification, change.incident.state, change.incident.closed)
    assert (3, 9) == (change.incident.rank, change.incident.first_step)


@pytest.mark.parametrize("severity", ["ticket", "page"])
def test_a_consequence_of_what_was_over_opens_it_again(severity: str) -> None:
    healed = finding("nonfinite-gradient", "ticket", active=False)
    before = only(judged(Explained("s", healed))).incident
    change = only(judged(Explained("s", healed, [finding(severity=severity)]), before=[before], now=NOW + SECOND))
    assert ("opened", "open", severity) == (change.notification, change.incident.state, change.incident.severity)


def test_a_page_that_comes_of_what_was_over_is_told_even_if_it_is_over_too() -> None:
    healed = finding("nonfinite-gradient", "ticket", active=False)
    before = only(judged(Explained("s", healed))).incident
    page = Explained("s", healed, [finding(active=False)])
    change = only(judged(page, before=[before], now=NOW + SECOND))
    assert ("opened", "closed", "page") == (change.notification, change.incident.state, change.incident.severity)
    assert [] == judged(page, before=[change.incident], now=NOW + 2 * SECOND)


def test_what_was_a_consequence_and_is_a_cause_again_is_open_again() -> None:
    before = msgspec.structs.replace(opened(Explained("s", finding())), state="closed", closed_reason="superseded")
    change = only(judged(Explained("s", finding()), before=[before]))
    assert ("opened", "open", None) == (change.notification, change.incident.state, change.incident.closed_reason)


def test_what_a_person_closed_is_not_opened_by_what_was_known() -> None:
    before = msgspec.structs.replace(opened(Explained("s", finding())), state="closed", closed_reason="by hand")
    assert [] == judged(Explained("s", finding()), before=[before])


@pytest.mark.parametrize(("later", "number", "new"), [(COOLDOWN_NS - 1, 1, False), (COOLDOWN_NS, 2, True)])
def test_a_new_occurrence_continues_it_within_the_cooldown_and_opens_another_later(
    later: int, number: int, new: bool
) -> None:
    change = only(judged(Explained("s", finding(times=2)), before=[recovered()], now=NOW + later))
    assert ("opened", number, "open", None, new) == (
        change.notification,
        change.incident.number,
        change.incident.state,
        change.incident.closed,
        change.new,
    )


def test_a_flicker_within_the_cooldown_is_noted_and_not_told() -> None:
    change = only(judged(Explained("s", finding(times=2, active=False)), before=[recovered()], now=NOW + SECOND))
    assert (None, "closed", 2) == (change.notification, change.incident.state, change.incident.times)


def test_a_ticket_that_turns_into_a_page_is_told_again_and_stays_a_page() -> None:
    before = opened(Explained("s", finding(severity="ticket")))
    change = only(judged(Explained("s", finding()), before=[before]))
    assert ("opened", "page", False) == (change.notification, change.incident.severity, change.new)
    assert [] == judged(Explained("s", finding(severity="ticket")), before=[change.incident])


def test_a_cause_is_as_grave_as_what_comes_of_it() -> None:
    ticket = finding("nonfinite-gradient", "ticket")
    incident = opened(Explained("s", ticket, [finding()]))
    assert "page" == incident.severity
    assert ["scale-collapse"] == [consequence["verdict"] for consequence in incident.consequences]


def test_a_cause_is_not_over_while_its_consequence_lasts() -> None:
    assert "open" == opened(Explained("s", finding("nonfinite-gradient", active=False), [finding()])).state


def test_a_consequence_whose_cause_is_found_later_folds_into_it_without_a_second_page() -> None:
    before = msgspec.structs.replace(opened(Explained("s", finding())), state="acknowledged", acknowledged=NOW)
    changes = judged(Explained("s", finding("nonfinite-gradient"), [finding()]), before=[before], now=NOW + SECOND)
    found = {change.incident.verdict: change for change in changes}
    assert (None, "acknowledged", NOW) == (
        found["nonfinite-gradient"].notification,
        found["nonfinite-gradient"].incident.state,
        found["nonfinite-gradient"].incident.acknowledged,
    )
    assert (None, "closed", "superseded") == (
        found["scale-collapse"].notification,
        found["scale-collapse"].incident.state,
        found["scale-collapse"].incident.closed_reason,
    )


def test_a_consequence_that_is_over_when_its_cause_is_found_folds_into_it_as_well() -> None:
    before = opened(Explained("s", finding()))
    before = only(judged(Explained("s", finding(active=False)), before=[before])).incident
    assert ("closed", "recovered", NOW) == (before.state, before.closed_reason, before.closed)
    cause = Explained("s", finding("broken-in-reduction", active=False), [finding(active=False)])
    found = {change.incident.verdict: change for change in judged(cause, before=[before], now=NOW + SECOND)}
    folded = found["scale-collapse"]
    assert (None, "superseded", NOW) == (folded.notification, folded.incident.closed_reason, folded.incident.closed)
    after = [change.incident for change in found.values()]
    assert [] == judged(cause, before=after, now=NOW + 2 * SECOND)


def test_an_earlier_episode_that_is_over_stays_an_incident_of_its_own() -> None:
    before = opened(Explained("s", finding()))
    before = only(judged(Explained("s", finding(active=False)), before=[before])).incident
    later = [finding(first_step=500, opened_step=510, last_step=520)]
    changes = judged(Explained("s", finding("broken-in-reduction", first_step=500), later), before=[before])
    assert ["broken-in-reduction"] == [change.incident.verdict for change in changes]


def test_a_graver_cause_is_told_although_its_consequence_was() -> None:
    before = opened(Explained("s", finding("gradient-underflow", "ticket")))
    changes = judged(
        Explained("s", finding("no-loss-scaling"), [finding("gradient-underflow", "ticket")]), before=[before]
    )
    assert {"no-loss-scaling": "opened", "gradient-underflow": None} == {
        change.incident.verdict: change.notification for change in changes
    }


def test_when_the_run_ends_tickets_close_and_pages_wait_for_somebody() -> None:
    ticket, page = Explained("s", finding("gradient-underflow", "ticket")), Explained("s", finding())
    before = [opened(ticket), opened(page)]
    change = only(judged(ticket, page, before=before, settled=True))
    assert ("gradient-underflow", "run ended", "resolved") == (
        change.incident.verdict,
        change.incident.closed_reason,
        change.notification,
    )


def test_a_page_of_an_ended_run_closes_once_it_is_acknowledged() -> None:
    page = Explained("s", finding())
    before = msgspec.structs.replace(opened(page), state="acknowledged", acknowledged=NOW)
    assert [] == judged(page, before=[before])
    assert "run ended" == opened(page, before=[before], settled=True).closed_reason


def test_a_page_that_nobody_takes_on_expires_a_day_after_it_opened() -> None:
    page = Explained("s", finding())
    before = [opened(page)]
    assert [] == judged(page, before=before, settled=True, now=NOW + EXPIRY_NS - 1)
    change = only(judged(page, before=before, settled=True, now=NOW + EXPIRY_NS))
    assert (None, "expired") == (change.notification, change.incident.closed_reason)


def test_a_page_of_a_running_run_never_expires() -> None:
    page = Explained("s", finding())
    assert [] == judged(page, before=[opened(page)], now=NOW + 9 * EXPIRY_NS)


def test_a_lost_rank_closes_when_another_life_continues_it() -> None:
    lost = Explained("first", finding("run-lost"))
    before = [opened(lost, ranks={"first": 0})]
    change = only(judged(lost, before=before, ended=frozenset({"first"})))
    assert ("resolved", "recovered") == (change.notification, change.incident.closed_reason)


@pytest.mark.parametrize(("settled", "reason"), [(False, "acknowledged"), (True, "run ended")])
def test_a_lost_rank_closes_when_it_is_acknowledged(settled: bool, reason: str) -> None:
    lost = Explained("s", finding("run-lost"))
    before = msgspec.structs.replace(opened(lost), state="acknowledged", acknowledged=NOW)
    assert reason == opened(lost, before=[before], settled=settled).closed_reason


def test_what_a_person_closed_opens_again_only_for_a_new_occurrence() -> None:
    page = Explained("s", finding())
    closed = msgspec.structs.replace(opened(page), state="closed", closed=NOW, closed_reason="by hand")
    assert [] == judged(page, before=[closed])
    assert "open" == opened(Explained("s", finding(times=2)), before=[closed]).state
