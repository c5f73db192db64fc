"""Whatever scanners of repositories look for is cut: samples of every pattern that detect-secrets publishes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
from detect_secrets.plugins.base import RegexBasedDetector
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from ammeter.redaction import Redactor
from tests.agent.innocent_samples import INNOCENT

ADDRESSES = "IPPublicDetector"
"""Its pattern is that of public IP addresses: hosts and addresses of a cluster are sent, and documented as such."""

MARKERS = "PrivateKeyDetector"
"""Its patterns are the words that stand above a key, which are no secret: the block below them has to go."""

NOT_SECRET = {
    r"AP[\dABCDEF][a-zA-Z0-9]{8,}": (
        r"(?i)\W?AP(?:[a-z0-9]{,17}|[a-z]+)\W?",
        "AP50to95mean",
        "what is shorter than twenty signs, or has no digit: metrics of detection and words in capitals",
    ),
    r"AKC[a-zA-Z0-9]{10,}": (r"(?i)\W?AKC[a-z]+\W?", "AKCELERATIONSS", "what has no digit is a word"),
    r'(?:"|\'|)(?:\]|)(?: *)': (
        r".*[\w\"'\]] +[\"']?[^\"' =:]+[\"']?",
        "['token'] abcdefghijklmnopqrstuvwx",
        "a word, nothing but a blank, and a word are a sentence",
    ),
    r"api.softlayer.com": (
        r"(?s).*[\"'<>`|\\^{}].*",
        "https://api^softlayer.com/soap",
        "its dots fit any sign, and these are in no URL",
    ),
    r"://[^:/\?\#\[\]@!": (
        r"(?s).*[\"<>`\\].*",
        '//host:80","mail":"bob@',
        "a URL ends at these signs, wherever one is printed: what follows is another one's",
    ),
}
"""A part of a pattern -> which of its samples are left to stand, one of them, and why."""

OPTIONAL_QUOTE = '(?:"|'
QUOTED = re.compile(r"(?:[^\"']|([\"'])[\w-]+\1)*")
"""Of patterns in which each quote may be missing, the samples whose quotes are pairs: others are no language."""

SHORTEST_PART = 8
"""Characters from which a group of a match is the secret itself; where it is shorter, the whole match is."""


def published() -> list[tuple[str, re.Pattern[str]]]:
    detectors: set[Any] = set(get_mapping_from_secret_type_to_class().values())
    return [
        (detector.__name__, pattern)
        for detector in sorted(detectors, key=lambda detector: str(detector.__name__))
        if issubclass(detector, RegexBasedDetector)
        and isinstance(detector.denylist, list | tuple)
        and detector.__name__ != ADDRESSES
        for pattern in detector.denylist
    ]


PUBLISHED = published()


def redactor() -> Redactor:
    return Redactor(remembers=False)


def secret_of(match: re.Match[str]) -> str:
    parts = [group for group in match.groups() if group and len(group) >= SHORTEST_PART]
    return str(max(parts, key=len, default=match[0])).strip("\"' =:")


def left_of(text: str) -> dict[str, str]:
    """What is left of a text that is said in each of the ways there are."""
    mine = redactor()
    return {
        "text": mine.text(f"the server refused {text} just now"),
        "config": json.dumps(mine.plain({"run": {"notes": ["first", {"said": text}]}}), ensure_ascii=False),
        "command": mine.command(["train.py", "--steps", "5", text]),
        "error": mine.words(ValueError(f"cannot use {text}\nask somebody")),
    }


def test_the_published_list_is_a_long_one() -> None:
    assert len(PUBLISHED) >= 40
    assert len({name for name, _ in PUBLISHED}) >= 22


@pytest.mark.parametrize(
    ("name", "pattern"), PUBLISHED, ids=[f"{name}-{number}" for number, (name, _) in enumerate(PUBLISHED)]
)
def test_samples_of_published_patterns_are_cut(name: str, pattern: re.Pattern[str]) -> None:
    left_to_stand = [words for part, (words, *_) in NOT_SECRET.items() if part in pattern.pattern]
    tried = []
    small = re.compile(pattern.pattern, pattern.flags & ~re.IGNORECASE)
    signs = st.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs"))

    @given(st.from_regex(small, fullmatch=True, alphabet=signs), st.booleans())
    @settings(
        max_examples=25,
        phases=(Phase.generate,),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def cut(sample: str, capitals: bool) -> None:
        sample = sample.upper() if capitals and pattern.flags & re.IGNORECASE else sample
        assume(OPTIONAL_QUOTE not in pattern.pattern or QUOTED.fullmatch(sample))
        match = pattern.search(sample)
        assume(match is not None)
        assert match is not None
        assume(not any(re.fullmatch(form, sample) for form in left_to_stand))
        printed, secret = sample, secret_of(match)
        if name == MARKERS:
            secret = "MIIEpAIBAAKCAQEAx7Zq0Vb3"
            printed = f"-----{sample}-----\n{secret}\n-----END" if sample.startswith("BEGIN") else f"{sample}: {secret}"
        tried.append(printed)
        for way, left in left_of(printed).items():
            assert secret not in left, way

    cut()
    assert len(set(tried)) >= (1 if name == MARKERS else 5)


@pytest.mark.parametrize(("words", "said", "reason"), NOT_SECRET.values(), ids=NOT_SECRET)
def test_what_is_left_to_stand_is_innocent(words: str, said: str, reason: str) -> None:
    assert re.fullmatch(words, said), reason
    assert said == redactor().text(said), reason


def test_nothing_innocent_is_cut_from_a_text() -> None:
    for text in INNOCENT:
        assert text == redactor().plain(text)
