"""The checks of a gate as JUnit XML, which CI services read."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from ammeter.__main__ import main
from ammeter.report.gate.checks import Check
from ammeter.report.gate.junit import write_junit
from tests.agent.report.gate.test_gate import NO_SPEED, train

Output = pytest.CaptureFixture[str]


def suite_of(file: Path) -> ElementTree.Element:
    root = ElementTree.parse(file).getroot()
    assert "testsuites" == root.tag
    (suite,) = root
    return suite


def outcomes(suite: ElementTree.Element) -> dict[str, str]:
    """Name of each test case -> its outcome, as CI services read it."""
    return {
        case.attrib["name"]: next((part.tag for part in case if part.tag in ("failure", "skipped")), "passed")
        for case in suite.iter("testcase")
    }


def test_a_gate_writes_each_check_as_a_test_case(tmp_path: Path, capsys: Output) -> None:
    base, worse = train(tmp_path, "base"), train(tmp_path, "worse", spoil=0.05)
    file = tmp_path / "reports" / "gate.xml"
    assert 3 == main(["gate", str(worse), str(base), "--junit", str(file), *NO_SPEED])
    suite = suite_of(file)
    assert ("5", "1", "1", "0") == tuple(suite.attrib[name] for name in ("tests", "failures", "skipped", "errors"))
    assert {
        "settings": "passed",
        "speed": "passed",
        "memory": "skipped",
        "validation": "failure",
        "findings": "passed",
    } == outcomes(suite)
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert "1.05 against 1 at step 39, +5.00 %; at most +1 %" == failure.attrib["message"] == failure.text
    assert {"ammeter gate: worse against base"} == {case.attrib["classname"] for case in suite.iter("testcase")}
    assert "OUTSIDE" in capsys.readouterr().out


def test_json_and_junit_can_be_had_together(tmp_path: Path, capsys: Output) -> None:
    base, twin = train(tmp_path, "base"), train(tmp_path, "twin")
    file = tmp_path / "gate.xml"
    capsys.readouterr()
    assert 0 == main(["gate", str(twin), str(base), "--json", "--junit", str(file), *NO_SPEED])
    assert '"within"' in capsys.readouterr().out
    assert "0" == suite_of(file).attrib["failures"]


def test_a_limit_that_was_given_and_cannot_be_measured_is_a_failure(tmp_path: Path) -> None:
    write_junit(tmp_path / "gate.xml", "a against b", [Check("memory", None, "no device memory", requested=True)])
    assert {"memory": "failure"} == outcomes(suite_of(tmp_path / "gate.xml"))


def test_names_with_signs_that_xml_does_not_have_are_readable(tmp_path: Path) -> None:
    write_junit(tmp_path / "gate.xml", "a<b>&\x00\x1b[31m", [Check("x", False, '\ud800"quoted" & <b>\x07')])
    suite = suite_of(tmp_path / "gate.xml")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert '\N{REPLACEMENT CHARACTER}"quoted" & <b>\N{REPLACEMENT CHARACTER}' == failure.text


def test_a_file_that_cannot_be_written_is_an_error_with_its_name(tmp_path: Path, capsys: Output) -> None:
    base, twin = train(tmp_path, "base"), train(tmp_path, "twin")
    (tmp_path / "file").touch()
    capsys.readouterr()
    assert 2 == main(["gate", str(twin), str(base), "--junit", str(tmp_path / "file" / "gate.xml"), *NO_SPEED])
    assert f"{tmp_path / 'file'}" in capsys.readouterr().err
