from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ammeter import journal
from ammeter.journal import directives
from ammeter.journal.directives import MAX_DIRECTIVES, DirectiveFile, Directives


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(directives, "perf_counter", lambda: now[0])
    return now


def later(clock: list[float]) -> None:
    clock[0] += directives.CHECK_SECONDS


def test_what_the_shipper_leaves_is_taken_once(tmp_path: Path, clock: list[float]) -> None:
    asked = Directives(tmp_path)
    assert [] == asked.poll()
    journal.replace(tmp_path / "directives", b'[{"arm": "origin", "steps": 5}]')
    assert [] == asked.poll()
    later(clock)
    assert [{"arm": "origin", "steps": 5}] == asked.poll()
    later(clock)
    assert [] == asked.poll()
    journal.replace(tmp_path / "directives", b'[{"arm": "origin", "steps": 5}]')
    later(clock)
    assert [{"arm": "origin", "steps": 5}] == asked.poll()


def test_the_file_is_looked_at_once_a_second(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Any] = []
    stat = os.stat

    def counted(*args: Any, **kwargs: Any) -> os.stat_result:
        looks.append(args)
        return stat(*args, **kwargs)

    monkeypatch.setattr(os, "stat", counted)
    asked = Directives(tmp_path)
    for _ in range(100):
        asked.poll()
        clock[0] += 0.05
    assert 5 == len([args for args in looks if args == (tmp_path / "directives",)])


@pytest.mark.parametrize("content", [b"", b"[", b"\xff\x00", b"5", b'{"arm": "origin"}', b"[1, null]", b"[" * 10**5])
def test_a_file_that_is_none_of_the_shippers_asks_for_nothing(
    content: bytes, tmp_path: Path, clock: list[float]
) -> None:
    (tmp_path / "directives").write_bytes(content)
    assert [] == Directives(tmp_path).poll()


def test_a_link_is_not_followed(tmp_path: Path, clock: list[float]) -> None:
    (tmp_path / "elsewhere").write_text('[{"arm": "origin"}]')
    (tmp_path / "directives").symlink_to(tmp_path / "elsewhere")
    assert [] == Directives(tmp_path).poll()


def test_a_pipe_is_not_waited_for(tmp_path: Path, clock: list[float]) -> None:
    os.mkfifo(tmp_path / "directives")
    assert [] == Directives(tmp_path).poll()


def test_the_shipper_leaves_named_directives_with_earlier_ones(tmp_path: Path, clock: list[float]) -> None:
    """A process whose steps are long reads the file after several of them."""
    file = DirectiveFile(tmp_path)
    names = [{"id": str(number), "arm": "census"} for number in range(MAX_DIRECTIVES + 5)]
    file.leave(names[:1])
    file.leave([names[1], {"arm": "origin"}])
    assert [*names[:2], {"arm": "origin"}] == Directives(tmp_path).poll()
    for name in names[2:]:
        file.leave([name])
    assert names[-MAX_DIRECTIVES - 1 :] == Directives(tmp_path).poll()
