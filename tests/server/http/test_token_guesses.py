from __future__ import annotations

from ammeter_server.http.limits.token_guesses import MAX_ADDRESSES, MAX_GUESSES, WINDOW_SECONDS, TokenGuesses


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def tried(guesses: TokenGuesses, address: str, count: int = MAX_GUESSES) -> list[float]:
    return [guesses.add(address, str(number)) for number in range(count)]


def test_so_many_different_wrong_tokens_may_be_tried_and_no_more() -> None:
    guesses = TokenGuesses(Clock())
    assert [0.0] * MAX_GUESSES == tried(guesses, "10.0.0.1")
    assert WINDOW_SECONDS == guesses.add("10.0.0.1", "new")
    assert 0 == guesses.add("10.0.0.1", "0")
    assert 0 == guesses.add("10.0.0.2", "new")


def test_one_wrong_token_is_one_guess_however_often_it_comes() -> None:
    guesses = TokenGuesses(Clock())
    assert {0.0} == {guesses.add("10.0.0.1", "the same") for _ in range(10 * MAX_GUESSES)}
    assert 0 == guesses.add("10.0.0.1", "new")


def test_after_a_while_there_is_another_chance() -> None:
    clock = Clock()
    guesses = TokenGuesses(clock)
    tried(guesses, "10.0.0.1")
    clock.now += WINDOW_SECONDS - 1
    assert 1 == guesses.add("10.0.0.1", "new")
    clock.now += 1
    assert 0 == guesses.add("10.0.0.1", "new")


def test_the_addresses_of_one_ipv6_network_are_one() -> None:
    guesses = TokenGuesses(Clock())
    for number in range(MAX_GUESSES):
        guesses.add(f"2001:db8::{number:x}", str(number))
    assert guesses.add("2001:db8::ffff", "new") > 0
    assert 0 == guesses.add("2001:db8:0:1::1", "new")


def test_what_is_remembered_does_not_grow_without_end() -> None:
    guesses = TokenGuesses(Clock())
    for number in range(MAX_ADDRESSES + 10):
        guesses.add(f"host-{number}", "wrong")
    tried(guesses, "host-20000", 10 * MAX_GUESSES)
    assert (MAX_ADDRESSES, MAX_GUESSES) == (len(guesses._guesses), len(guesses._guesses["host-20000"]))
