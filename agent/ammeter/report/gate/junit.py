"""Writes the checks of a gate as JUnit XML, which CI services show beside the tests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from ammeter.report.gate.checks import Check

SUITE = "ammeter gate"

FORBIDDEN = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
"""Characters that XML 1.0 does not allow, not even escaped."""


def write_junit(file: Path, title: str, checks: Sequence[Check]) -> None:
    """Writes one test case per check; a check that is not measured is skipped, unless it was requested.

    Raises OSError if the file cannot be written.
    """
    suite = ElementTree.Element("testsuite", name=SUITE, tests=str(len(checks)), errors="0")
    suite.set("failures", str(sum(check.fails for check in checks)))
    suite.set("skipped", str(sum(check.within is None and not check.fails for check in checks)))
    for check in checks:
        case = ElementTree.SubElement(suite, "testcase", classname=_text(f"{SUITE}: {title}"), name=_text(check.name))
        if check.fails:
            part = ElementTree.SubElement(case, "failure", message=_text(check.text))
        elif check.within is None:
            part = ElementTree.SubElement(case, "skipped", message=_text(f"not measured: {check.text}"))
        else:
            part = ElementTree.SubElement(case, "system-out")
        part.text = _text(check.text)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    file.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(root).write(file, encoding="utf-8", xml_declaration=True)


def _text(text: str) -> str:
    return FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
