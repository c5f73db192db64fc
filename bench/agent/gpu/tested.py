"""The part that runs tests/gpu: numbers, waiting, bits, captured graphs, findings, operator durations and NVML."""

from __future__ import annotations

import os
import re
import time

import pytest

from bench.agent.gpu.rows import FAILED, LEFT_OUT, OK, Row, emit
from bench.common.paths import ROOT

PART = "tests"
FILES = ("test_kernels", "test_waiting", "test_bits", "test_columns", "test_findings")
"""In the order of their value."""

TEST_SECONDS = 45
"""Limit of a test: one that hangs leaves time for the others."""


class Counted:
    """A pytest plugin that writes a row for each test function, when the next one begins."""

    def __init__(self) -> None:
        self._current = ""
        self._began = time.monotonic()
        self._reports: dict[str, str] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        name = function_of(nodeid)
        if name != self._current:
            self.end()
            self._current, self._began = name, time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        known = self._reports.get(report.nodeid, "")
        if report.failed:
            self._reports[report.nodeid] = f"FAILED {short(report)}"
        elif report.skipped:
            self._reports[report.nodeid] = f"skipped {short(report)}"
        elif not known:
            self._reports[report.nodeid] = "passed"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed or report.skipped:
            result = FAILED if report.failed else LEFT_OUT
            emit(Row(PART, report.nodeid.rpartition("/")[2], str(report.longrepr).strip()[-200:], "", result))

    def pytest_sessionfinish(self) -> None:
        self.end()

    def end(self) -> None:
        """Writes the row of the current function."""
        if not self._reports:
            return
        results = list(self._reports.values())
        passed, failed = results.count("passed"), [text for text in results if text.startswith(FAILED)]
        skipped = [text for text in results if text.startswith("skipped")]
        measured = f"{passed} of {len(results)} passed, {time.monotonic() - self._began:.1f} s"
        measured += "".join(f"; {text}" for text in (failed + skipped)[:1])
        result = FAILED if failed else OK if passed else LEFT_OUT
        emit(Row(PART, self._current.removeprefix("test_").replace("_", " "), measured, "", result))
        self._reports = {}


def run(dry: bool) -> int:
    os.chdir(ROOT)
    print("```text", flush=True)
    options = [
        "-vv",
        "--tb=short",
        "--no-header",
        "--disable-warnings",
        "-p",
        "no:cacheprovider",
        "--confcutdir=tests/gpu",
    ]
    options += ["-o", "addopts=", "-o", f"timeout={TEST_SECONDS}", "-o", "filterwarnings="]
    files = [f"tests/gpu/{name}.py" for name in FILES]
    code = pytest.main([*files, *options, *(DRY_OPTIONS if dry else [])], plugins=[Counted()])
    print("```", flush=True)
    return int(code)


DRY_OPTIONS = ["-k", "not efficient and not cudnn"]
"""Attention of the CPU has no kernels of these kinds."""


def function_of(nodeid: str) -> str:
    return nodeid.partition("[")[0].rpartition("::")[2]


def short(report: pytest.TestReport) -> str:
    """Which parameters, and the last line of the reason."""
    parameters = re.search(r"\[.*\]$", report.nodeid)
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    lines = [line.removeprefix("E").strip() for line in reason.strip().splitlines() if line.startswith("E")]
    text = (lines or reason.strip().splitlines() or [""])[0][:160]
    return f"{parameters[0] if parameters else ''} {text}".strip()
