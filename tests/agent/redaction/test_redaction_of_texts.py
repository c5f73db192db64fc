"""Any text is looked through: the secret goes whatever stands around it, and none takes long."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agent.redaction.test_redaction import redactor

BODY = st.from_regex(r"[a-z][0-9][A-Z][A-Za-z0-9]{9,30}", fullmatch=True)
NAMES = st.sampled_from(
    ["password", "api_key", "secret", "access-token", "dbPassword", "X-Api-Key", "WANDB_KEY", "private_key"]
)
AROUND = st.text(alphabet=" abcdefgh.,;()\n", max_size=20)


@given(
    NAMES,
    BODY,
    AROUND,
    AROUND,
    st.sampled_from(["{}={}", "{}: {}", "{}='{}'", '"{}": "{}"', "--{} {}", "{} = {}", "{}:{}"]),
)
@settings(max_examples=200, deadline=None)
def test_a_secret_in_a_text_goes_whatever_stands_around_it(
    name: str, body: str, left: str, right: str, form: str
) -> None:
    assert body not in redactor().text(f"{left} {form.format(name, body)} {right}")


@given(BODY, AROUND, AROUND, st.sampled_from(["postgresql", "https", "redis", "amqp", "mongodb+srv", "s3"]))
@settings(max_examples=100, deadline=None)
def test_the_password_of_a_url_goes_whatever_stands_around_it(body: str, left: str, right: str, scheme: str) -> None:
    assert body not in redactor().text(f"{left} {scheme}://user:{body}@host.example:5432/db?x=1 {right}")


@given(st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_text_can_be_looked_through_and_twice_is_as_once(text: str) -> None:
    clean = redactor().text(text)
    assert clean == redactor().text(clean)


HOSTILE = (
    *("a" * 10_000, "=" * 10_000, "a=" * 5000, "://" * 3000, "--a " * 2500, "x:y@" * 2500, "'" * 10_000, "\\" * 10_000),
    *(
        '\\"' * 5000,
        "<a>" * 3000,
        "-----BEGIN A-----" * 600,
        "a.b-" * 2500,
        "https://" + "a:" * 5000,
        "password " * 1100,
    ),
    *("eyJ" * 3000, "//" + "/hooks" * 1700, "{" * 10_000, "token: '" * 1300, "- " * 5000, "sk-" * 3300, "x-" * 5000),
    *(
        "Bearer " * 1400,
        "cookie " * 1400,
        "//a@" * 2500,
        "//:" * 3300,
        "A1b2" * 2500,
        "?a=" * 3000,
        "%40" * 3000,
        "[" * 9000,
    ),
)


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:8]))
def test_no_text_takes_long(text: str) -> None:
    began = time.process_time()
    redactor().words(text)
    redactor().plain(text)
    assert time.process_time() - began < 1.0
