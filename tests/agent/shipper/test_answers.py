"""The sender decodes answers and computes the wait before its next request."""

from __future__ import annotations

import email.utils
import time

import pytest

from ammeter.shipper.answers import backoff_seconds, decode_answer, rejected_wait_seconds, retry_seconds


def test_an_acknowledgement_carries_directives() -> None:
    answer = decode_answer(200, b'{"offset": 5, "directives": [{"arm": "origin"}]}')
    assert (5, [{"arm": "origin"}]) == (answer.offset, answer.directives)


@pytest.mark.parametrize("text", [b"<html>hello</html>", b"{}", b'{"offset": -1}', b""])
def test_a_200_that_is_no_acknowledgement_does_not_count_as_one(text: bytes) -> None:
    assert 404 == decode_answer(200, text).status


def test_a_problem_says_where_the_collector_is_and_which_item_it_refuses() -> None:
    assert 12 == decode_answer(409, b'{"title": "gap", "offset": 12}').offset
    assert (3, "422 too wide") == (lambda a: (a.item, a.detail))(
        decode_answer(422, b'{"detail": "too wide", "item": 3}')
    )
    assert (None, "502") == (lambda a: (a.offset, a.detail))(decode_answer(502, b"<html>bad gateway</html>"))


def test_retry_after_is_read_as_seconds_or_a_date_and_is_bounded() -> None:
    assert 3.0 == retry_seconds("3")
    assert 600.0 == retry_seconds("86400")
    assert retry_seconds("soon") is None
    assert retry_seconds(None) is None
    dated = retry_seconds(email.utils.formatdate(time.time() + 60, usegmt=True))
    assert dated is not None
    assert 50 < dated <= 60


def test_waits_grow_from_a_quarter_of_a_second_to_thirty_and_are_spread() -> None:
    assert all(0.125 <= backoff_seconds(1) <= 0.25 and 15 <= backoff_seconds(50) <= 30 for _ in range(50))
    assert len({backoff_seconds(9) for _ in range(20)}) > 10
    assert [1, 2, 5, 10, 30, 60, 60] == [rejected_wait_seconds(failures) for failures in range(1, 8)]
