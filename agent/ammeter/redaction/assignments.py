"""Removes the values of options, assignments and other names in text, if the name is secret."""

from __future__ import annotations

import re
from collections.abc import Callable

from ammeter.redaction.key_words import Kind, words
from ammeter.redaction.keys import kind
from ammeter.redaction.lazy_pattern import pattern
from ammeter.redaction.placeholders import GAP, NOTHING, is_number

_QUOTED = r"(?P<mark>\\*[\"'])(?:(?!(?P=mark)).)*+(?:(?P=mark)|\Z)"
"""Quoted text. The quotes may be escaped, and the closing quote may be missing."""

_OPTION = pattern(r"(?<![\w-])(?P<key>-{1,2}[A-Za-z][\w.-]*+)(?P<sign>\\*[\"']?(?:\s*,\s*|\s+|=)|(?=[\"']))")
_OPTION_VALUE = pattern(_QUOTED + r"|[^\s\"'`]\S*?(?=[\"'`\]})>,;]*(?:\s|\Z))", re.DOTALL)


def redact_options(text: str) -> str:
    """Removes secrets from `--token x`, also in the form of a printed list: '--token', 'x'."""
    return _redact_values(text, _OPTION, _OPTION_VALUE, _may_open, _opens)


_USER_OPTIONS = words("-u --user --proxy-user")


def _may_open(match: re.Match[str]) -> bool:
    if match["key"] in _USER_OPTIONS:
        return True
    return match["sign"][-1:] not in ("", "=") and kind(match["key"]) is not Kind.PLAIN


def _opens(match: re.Match[str], value: str) -> bool:
    if match["key"] in _USER_OPTIONS:
        return ":" in value
    return not value.startswith("--") and value.strip("=:>?+|") != "" and _hides(match["key"], value)


_NAME = pattern(
    r"(?<![\w.\-])(?P<key>[\w.\-\[\]/]*[^\W\d_][\w.\-\[\]/]*+)"
    r"(?P<sign>\\*[\"']?\]?(?:[ \t]{4,40}+|\s{0,3})"
    r"(?::{1,3}=|(?:[?+]|\|\|)=|=>|->|==?|::?(?!//)|,(?=\s{0,3}b?\\*[\"']))"
    r"(?:[ \t]{4,40}+|\s{0,3})(?:[bBrRuUfF](?=\\*[\"']))?)"
)
_NAME_VALUE = pattern(_QUOTED + r"|[^\s\"'`&\[{(][^\s&]*|[\[{(][^\])}]*[\])}]?", re.DOTALL)
_KEY_NEXT = pattern(r"\\*([\"'])[^\"']*\1\s*:")
_WORDS_BEFORE = pattern(r"(?:[A-Za-z_]{2,20}[ -]){1,2}\Z")


def redact_assignments(text: str) -> str:
    """Removes the values of `name=value`, `name: value` and the like, if the name is secret."""
    return _redact_values(text, _NAME, _NAME_VALUE, _may_be_assigned, _is_assigned)


def _may_be_assigned(match: re.Match[str]) -> bool:
    return kind(match["key"]) is not Kind.PLAIN or _key_before(match) is Kind.SECRET


def _key_before(match: re.Match[str]) -> Kind:
    """Returns the kind of a key with the words before it.

    An example is 'secret access key = '.
    """
    before = _WORDS_BEFORE.search(match.string[max(0, match.start() - 44) : match.start()])
    return kind(f"{before[0]}{match['key']}") if before else Kind.PLAIN


def _is_assigned(match: re.Match[str], value: str) -> bool:
    key = match["key"]
    if "," in match["sign"]:  # a pair in a printed list
        is_a_key = _KEY_NEXT.match(match.string, match.end())
        return kind(key) is Kind.SECRET and _hides(key, value) and not value.startswith("-") and not is_a_key
    if _hides(key, value, certain=match["sign"][:1] in ("'", '"', "\\")):
        return True
    return _key_before(match) is Kind.SECRET and _hides("secret", value)


_QUOTE = r"\\*[\"']"
_PAIR = pattern(
    rf"{_QUOTE}(?:name|key|header|env){_QUOTE}\s*:\s*{_QUOTE}(?P<key>[^\"'\\]{{1,100}}){_QUOTE}\s*,\s*"
    rf"{_QUOTE}(?:value|content|default){_QUOTE}\s*:\s*",
    re.IGNORECASE,
)


_ATTRIBUTES = pattern(
    r"\b(?:name|key)\s{0,3}=\s{0,3}\\*[\"'](?P<key>[^\"'\\<>]{1,100})\\*[\"']\s{1,20}+(?:value|content|default)\s{0,3}=\s{0,3}",
    re.IGNORECASE,
)


def redact_pairs(text: str) -> str:
    """Removes secrets from `{"name": "PASSWORD", "value": "x"}` and `<add key="Password" value="x"/>`.

    Settings are often printed in these forms.
    """
    for pair in (_PAIR, _ATTRIBUTES):
        text = _redact_values(text, pair, _NAME_VALUE, _may_be_named, _is_named)
    return text


def _may_be_named(match: re.Match[str]) -> bool:
    return kind(match["key"]) is not Kind.PLAIN


def _is_named(match: re.Match[str], value: str) -> bool:
    return _hides(match["key"], value, certain=True)


def _redact_values(
    text: str,
    head: re.Pattern[str],
    tail: re.Pattern[str],
    may_hide: Callable[[re.Match[str]], bool],
    hides: Callable[[re.Match[str], str], bool],
) -> str:
    """Replaces the values after names for which `hides` is true; searches other values as well.

    may_hide: whether the value is matched at all, because a value can be as long as the rest of the text.
    """
    parts: list[str] = []
    copied = searched = 0
    while match := head.search(text, searched):
        searched = match.end()
        value = tail.match(text, searched) if may_hide(match) else None
        if value is not None and hides(match, _bare(value[0])):
            parts += (text[copied:searched], _replacement(value))
            copied = searched = max(value.end(), searched)
    return "".join((*parts, text[copied:])) if parts else text


_PHRASE = pattern(
    r"\b(?P<head>(?P<before>\w{0,40}?)(?P<key>pass(?:word|wd|phrase|code)|pwd|secret|token"
    r"|(?:api|access|secret|private)[ _-]?key"
    r"|credentials?|(?<=\w)(?:key|pass|pw))[\"'\]]{0,2}(?:\s+(?:is|was|of|given|for\s+\S+\s+is))?\s+)(?P<value>(?P<mark>[\"'`])(?:(?!(?P=mark)).){3,}(?P=mark)"
    r"|(?=[^\s]*[0-9$!#%&*+])[^\s\"'`(]{5,})",
    re.IGNORECASE,
)


def redact_phrases(text: str) -> str:
    """Replaces secrets in `password is 'x'` and `the token x1y2z3`."""
    return _PHRASE.sub(_redact_phrase, text)


def _redact_phrase(match: re.Match[str]) -> str:
    value = _bare(match["value"])
    mark = match["mark"] or ""
    if match["before"] and kind(match["before"] + match["key"]) is not Kind.SECRET:
        return match[0]
    return match[0] if is_number(value) or value.startswith(GAP) else f"{match['head']}{mark}{GAP}{mark}"


_ELEMENT = pattern(r"<(?P<name>[A-Za-z][\w.:-]{0,60})(?P<more>[^<>]{0,200})>(?P<value>[^<>]+)(?=</(?P=name)>)")


def redact_elements(text: str) -> str:
    """Replaces the content of XML elements."""
    return _ELEMENT.sub(_redact_element, text)


def _redact_element(match: re.Match[str]) -> str:
    name = match["name"]
    return f"<{name}{match['more']}>{GAP}" if _hides(name, match["value"]) else match[0]


def _hides(key: str, value: str, *, certain: bool = False) -> bool:
    """Returns whether the value of this key is withheld.

    certain: whether the key is certainly a key, and not a word in a sentence.
    """
    if value.strip("([{}]),; ") in NOTHING or value.startswith(GAP):
        return False
    meaning = kind(key)
    if meaning is Kind.SECRET:
        return not (is_number(value.rstrip(")]},;")) and len(value) < 8)
    if meaning is Kind.TEXT:
        return not is_number(value.rstrip(")]},;")) and (
            certain or key.strip("-").lower() not in ("key", "auth", "private")
        )
    return False


def _bare(value: str) -> str:
    return value.strip("\\").strip("\"'").strip("\\")


def _replacement(match: re.Match[str]) -> str:
    """Returns the replacement of a value, in quotes if the value was quoted."""
    value, mark = match[0], match["mark"] or ""
    if mark:
        closed = value.endswith(mark) and len(value) >= 2 * len(mark)
        return f"{mark}{GAP}{mark if closed else ''}"
    end = re.search(r"[)\]},;]*\Z", value)
    return f"{GAP}{end[0] if end and value[0] not in '[{(' else ''}"
