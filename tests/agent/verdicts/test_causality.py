"""One fault, one finding: consequences go into their cause, and people read causes first."""

from __future__ import annotations

from msgspec.structs import replace

from ammeter.verdicts import ALL, BY_ID
from ammeter.verdicts.causality import explain, of_ranks
from ammeter.verdicts.framework.finding import BEFORE_FORWARD, Finding


def finding(verdict: str, first: int, last: int | None = None, severity: str = "page", active: bool = True) -> Finding:
    last = first if last is None else last
    return Finding(verdict, severity, first, first, last, "It broke.", "Mend it.", active=active)  # type: ignore[arg-type]


def read(*findings: Finding | tuple[str, Finding]) -> list[tuple[str, list[str]]]:
    told = [finding if isinstance(finding, tuple) else ("a", finding) for finding in findings]
    return [(cause.finding.verdict, [more.verdict for more in cause.consequences]) for cause in explain(told)]


def test_a_chain_of_causes_ends_in_one_finding() -> None:
    chain = [finding("scale-collapse", 20), finding("nonfinite-gradient", 20), finding("nonfinite-loss", 160)]
    assert [("nonfinite-gradient", ["scale-collapse", "nonfinite-loss"])] == read(*chain)


def test_where_each_can_bring_about_the_other_the_earlier_one_did() -> None:
    gradient, loss = finding("nonfinite-gradient", 20), finding("nonfinite-loss", 21)
    assert [("nonfinite-gradient", ["nonfinite-loss"])] == read(gradient, loss)
    gradient, loss = finding("nonfinite-gradient", 21), finding("nonfinite-loss", 20)
    assert [("nonfinite-loss", ["nonfinite-gradient"])] == read(gradient, loss)


def test_a_cause_may_be_seen_a_little_late() -> None:
    scaling, underflow = finding("no-loss-scaling", 5), finding("gradient-underflow", 0)
    assert [("no-loss-scaling", ["gradient-underflow"])] == read(underflow, scaling)
    assert 2 == len(read(finding("gradient-underflow", 0), finding("no-loss-scaling", 6)))


def test_a_cause_that_was_over_long_before_explains_nothing() -> None:
    old = finding("nonfinite-gradient", 20, last=21, active=False)
    assert 2 == len(read(old, finding("scale-collapse", 1000)))
    assert 1 == len(read(old, finding("scale-collapse", 22)))


def test_what_has_nothing_to_do_with_each_other_stays_apart_causes_first_then_pages_then_by_step() -> None:
    assert [
        ("no-loss-scaling", ["gradient-underflow"]),
        ("nonfinite-loss", []),
        ("run-lost", []),
        ("overflow-storm", []),
    ] == read(
        finding("overflow-storm", 1, severity="ticket"),
        finding("run-lost", 90),
        finding("nonfinite-loss", 80),
        finding("gradient-underflow", 3, severity="ticket"),
        finding("no-loss-scaling", 0, severity="ticket"),
    )


def test_a_rank_s_consequence_goes_to_that_rank_s_cause() -> None:
    told = [
        (stream, finding(verdict, 20)) for stream in ("a", "b") for verdict in ("scale-collapse", "nonfinite-gradient")
    ]
    explained = explain(told)
    assert [("a", 1), ("b", 1)] == [(cause.stream, len(cause.consequences)) for cause in explained]


def test_one_rank_s_cause_explains_what_another_rank_sees() -> None:
    assert [("nonfinite-loss", ["scale-collapse"])] == read(
        ("a", finding("nonfinite-loss", 20)), ("b", finding("scale-collapse", 20))
    )


def test_a_text_that_quotes_a_loss_names_its_rank() -> None:
    spike = replace(finding("gradient-spike", 5), cause="The loss was 0.37 at that step.")
    silent = replace(spike, cause="The norm jumped.")
    assert [
        cause
        for _, told in of_ranks([("a", spike), ("b", spike), ("b", silent)], {"a": 0, "b": 1})
        if (cause := told.cause)
    ] == [
        "The loss was 0.37 at that step. The quoted losses are those of rank 0.",
        "The loss was 0.37 at that step. The quoted losses are those of rank 1.",
        "The norm jumped.",
    ]
    assert [("a", spike)] == of_ranks([("a", spike)], {"a": 0})


def test_within_a_step_what_was_there_before_the_forward_pass_is_the_cause() -> None:
    loss, weights = finding("nonfinite-loss", 5), finding("nonfinite-weights", 5)
    assert [("nonfinite-loss", ["nonfinite-weights"])] == read(loss, weights)
    weights = replace(weights, evidence={BEFORE_FORWARD: True})
    assert [("nonfinite-weights", ["nonfinite-loss"])] == read(loss, weights)
    assert [("nonfinite-loss", ["nonfinite-weights"])] == read(finding("nonfinite-loss", 4), weights)


def test_every_consequence_that_a_verdict_names_is_a_verdict() -> None:
    for verdict in ALL:
        assert set(verdict.explains) <= set(BY_ID) - {verdict.id}


def test_nothing_found_is_nothing_told() -> None:
    assert [] == explain([])
