from __future__ import annotations

from ammeter_server.guesses import MOST, REMEMBERED, WINDOW, Guesses


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def tried(guesses: Guesses, address: str, count: int, prefix: str = "") -> None:
    for number in range(count):
        guesses.note(address, f"{prefix}{number}", right=False)


def test_so_many_different_wrong_tokens_are_looked_at_and_no_more() -> None:
    guesses = Guesses(Clock())
    tried(guesses, "10.0.0.1", MOST - 1)
    assert 0 == guesses.wait("10.0.0.1", "new")
    tried(guesses, "10.0.0.1", MOST)
    assert WINDOW == guesses.wait("10.0.0.1", "new")
    assert 0 == guesses.wait("10.0.0.2", "new")


def test_one_wrong_token_is_one_guess_however_often_it_comes() -> None:
    guesses = Guesses(Clock())
    for _ in range(10 * MOST):
        guesses.note("10.0.0.1", "the same", right=False)
    assert 0 == guesses.wait("10.0.0.1", "new")


def test_a_token_that_was_right_is_heard_until_it_is_wrong() -> None:
    guesses = Guesses(Clock())
    guesses.note("10.0.0.2", "good", right=True)
    tried(guesses, "10.0.0.1", MOST)
    assert 0 == guesses.wait("10.0.0.1", "good")
    guesses.note("10.0.0.1", "good", right=False)
    tried(guesses, "10.0.0.3", MOST)
    assert guesses.wait("10.0.0.3", "good") > 0


def test_after_a_while_there_is_another_chance() -> None:
    clock = Clock()
    guesses = Guesses(clock)
    tried(guesses, "10.0.0.1", MOST)
    clock.now += WINDOW
    assert 0 == guesses.wait("10.0.0.1", "new")


def test_the_addresses_of_one_ipv6_network_are_one() -> None:
    guesses = Guesses(Clock())
    for number in range(MOST):
        guesses.note(f"2001:db8::{number:x}", str(number), right=False)
    assert guesses.wait("2001:db8::ffff", "new") > 0
    assert 0 == guesses.wait("2001:db8:0:1::1", "new")


def test_what_is_remembered_does_not_grow_without_end() -> None:
    guesses = Guesses(Clock())
    for number in range(REMEMBERED + 10):
        guesses.note(f"host-{number}", "wrong", right=False)
        guesses.note("", str(number), right=True)
    assert [REMEMBERED] * 2 == [len(guesses._wrong), len(guesses._right)]
