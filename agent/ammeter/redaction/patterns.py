"""Finds secrets in text by their form.

The forms are tokens of known services, userinfo and query of URLs, headers, options, and `name=value`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from ammeter.redaction import assignments, credentials, issued_tokens
from ammeter.redaction.placeholders import GAP, GONE
from ammeter.redaction.urls import redact_urls


def cut(text: str) -> str:
    """Returns the text without secrets of a known form.

    A text without any is returned unchanged.
    """
    lower = text.lower()
    if GONE in text:
        text = text.replace(GONE, GAP)
    for hints, redact in _STEPS:
        if any(hint in lower for hint in hints):
            text = redact(text)
    return text.replace(GAP, GONE) if GAP in text else text


def _cut_unnamed(text: str) -> str:
    return issued_tokens.UNNAMED.sub(GAP, text) if len(text) >= issued_tokens.MIN_UNNAMED_CHARS else text


_STEPS: tuple[tuple[Collection[str], Callable[[str], str]], ...] = (
    (("-----begin", "putty-user-key"), lambda text: issued_tokens.PEM.sub(GAP, text)),
    (("//",), partial(redact_urls, cut=cut)),
    (("@",), credentials.redact_logins),
    (("authorization", "cookie", "x-"), credentials.redact_headers),
    (("bearer", "basic", "negotiate", "apikey", "splunk", "ssws", "token"), credentials.redact_schemes),
    (("-",), assignments.redact_options),
    (("value", "content", "default"), assignments.redact_pairs),
    (("=", ":", "->", ","), assignments.redact_assignments),
    (("pass", "pwd", "secret", "token", "key", "credential"), assignments.redact_phrases),
    (("</",), assignments.redact_elements),
    (issued_tokens.HINTS, lambda text: issued_tokens.ISSUED.sub(GAP, text)),
    (("aws",), lambda text: issued_tokens.AWS.sub(rf"\g<head>{GAP}", text)),
    (("",), _cut_unnamed),
)
"""(substrings, function): the function runs if the text in lower case contains one of the substrings."""
