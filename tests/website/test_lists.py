from __future__ import annotations

import markdown
import pytest

from website.lists import indented

CODE_IN_A_LIST = "1. One:\n\n   ```python\n   if a:\n       b()\n   ```\n2. Two.\n"


def html(text: str) -> str:
    return str(markdown.markdown(indented(text), extensions=["pymdownx.superfences"]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1. One\n   goes on.\n2. Two.\n", "1. One\n    goes on.\n2. Two.\n"),
        ("- One\n  - inner\n    goes on\n- Two\n", "- One\n    - inner\n        goes on\n- Two\n"),
        ("Text:\n- One\n", "Text:\n\n- One\n"),
        ("Text\ngoes on.\n\n    code\n", "Text\ngoes on.\n\n    code\n"),
        ("```\n- no list\n  - here\n```\n", "```\n- no list\n  - here\n```\n"),
        ("10. Ten\n    goes on.\n", "10. Ten\n    goes on.\n"),
        ("- One\n\nText.\n  Two spaces.\n", "- One\n\nText.\n  Two spaces.\n"),
    ],
)
def test_lines_of_lists_are_moved_and_others_stay(text: str, expected: str) -> None:
    assert expected == indented(text)


def test_a_list_with_code_is_one_list() -> None:
    shown = html(CODE_IN_A_LIST)
    assert 1 == shown.count("<ol>")
    assert 2 == shown.count("<li>")
    assert shown.index("<pre>") < shown.index("Two.")
