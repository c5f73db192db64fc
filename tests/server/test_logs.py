from __future__ import annotations

import io
import logging

import pytest

from ammeter_server.logs import FORMAT, OneLine, escaped

HOSTILE = "x\n2026-01-01 00:00:00 ERROR root: forged\r\x1b[2J\u202egnp.exe\u2028\x00\x85end"


def written(log: logging.Logger, act: str) -> list[str]:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(OneLine(FORMAT))
    log.addHandler(handler)
    try:
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            getattr(log, act)("run %s said %s", HOSTILE, "more")
    finally:
        log.removeHandler(handler)
    return out.getvalue().split("\n")[:-1]


def test_a_hostile_name_is_one_line_of_the_log() -> None:
    (line,) = written(logging.getLogger("hostile.one"), "warning")
    assert line.isprintable()
    assert line.endswith(r"said more")
    assert r"run x\n2026-01-01" in line


def test_a_traceback_is_set_in_and_forges_no_record() -> None:
    first, *rest = written(logging.getLogger("hostile.two"), "exception")
    assert "ERROR hostile.two: run x" in first
    assert rest
    assert all(line.startswith("    | ") and line.isprintable() for line in rest)


@pytest.mark.parametrize("text", ["plain words", "größer als 1 · 2¹⁶", "日本語"])
def test_what_can_be_read_stays_as_it_is(text: str) -> None:
    assert text == escaped(text)
