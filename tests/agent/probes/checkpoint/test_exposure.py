from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ammeter.probes.checkpoint import exposure as module
from ammeter.probes.checkpoint.exposure import STRANGER, Account, accounts, exposure

OTHER = 54321
OURS = frozenset({os.getegid()})


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody can reach; pytest's own are private."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def _file(folder: Path, mode: int, *folders: int) -> Path:
    """A file below folders of these modes, outermost first."""
    for at in range(len(folders)):
        folder = folder / f"folder{at}"
        folder.mkdir()
    path = folder / "model.pt"
    path.write_bytes(b"weights")
    path.chmod(mode)
    for at, folder_mode in reversed(list(enumerate(folders))):
        path.parents[len(folders) - 1 - at].chmod(folder_mode)
    return path


@pytest.mark.parametrize(
    ("mode", "folders", "expected"),
    [
        (0o600, (), []),
        (0o644, (), ["read"]),
        (0o640, (0o755,), []),
        (0o666, (0o755, 0o755), ["read", "replace"]),
        (0o644, (0o700,), []),
        (0o666, (0o700, 0o777), []),
        (0o600, (0o777,), ["replace"]),
        (0o600, (0o777, 0o755), ["replace"]),
        (0o644, (0o1777,), ["read"]),
        (0o600, (0o711,), []),
        (0o644, (0o711,), ["read"]),
        (0o644, (0o750,), []),
        (0o600, (0o776,), []),
    ],
)
def test_the_whole_path_is_judged(mode: int, folders: tuple[int, ...], expected: list[str], place: Path) -> None:
    path = _file(place, mode, *folders)
    found = exposure(str(path), [Account(OTHER)])
    assert (f"{mode:04o}", expected) == (found.mode, found.abilities)
    assert ("everybody with an account on the machine" if expected else "") == found.by


@pytest.mark.parametrize(
    ("mode", "folders", "alone", "beside"),
    [
        (0o644, (), [], ["read"]),
        (0o640, (0o755,), [], ["read"]),
        (0o600, (0o755,), [], []),
        (0o660, (0o750,), [], ["read", "replace"]),
        (0o640, (0o700,), [], []),
        (0o600, (0o770,), [], ["replace"]),
        (0o666, (), ["replace"], ["read", "replace"]),
        (0o604, (), [], []),
    ],
)
def test_only_who_is_there_can_read_and_a_member_of_the_group_by_its_bits(
    mode: int, folders: tuple[int, ...], alone: list[str], beside: list[str], place: Path
) -> None:
    path = str(_file(place, mode, *folders))
    assert alone == exposure(path, []).abilities
    member = exposure(path, [Account(OTHER, OURS)])
    assert beside == member.abilities
    if beside and not mode & 0o006:
        assert "1 other account on the machine, as of its group," == member.by


def test_who_owns_the_place_is_at_home_there(place: Path) -> None:
    path = str(_file(place, 0o644))
    assert [] == exposure(path, [Account(os.geteuid())]).abilities
    assert ["read"] == exposure(path, [STRANGER]).abilities


PASSWD = """root:x:0:0:root:/root:/bin/bash
www-data:x:33:33::/var/www:/usr/sbin/nologin
me:x:{me}:1001::/home/me:/bin/bash
ann:x:1002:1002::/home/ann:/bin/zsh
bob:x:1003:1003::/home/bob:/bin/sh
bot:x:1004:1004::/nonexistent:/usr/sbin/nologin
nobody:x:65534:65534::/nonexistent:/usr/sbin/nologin
"""


@pytest.mark.parametrize(
    ("services", "stranger"),
    [
        ("passwd: files systemd\n", False),
        ("passwd: files sss\ngroup: files\n", True),
        ("passwd: compat [NOTFOUND=return] ldap # all\n", True),
        ("passwd: files # ldap\n", False),
        (None, False),
    ],
)
def test_accounts_are_those_of_people_who_can_log_in(
    services: str | None, stranger: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "passwd").write_text(PASSWD.format(me=os.geteuid() or 1001) + "broken line\n")
    (tmp_path / "group").write_text("team:x:2000:bob,me\nrest:x:2001:\n")
    if services is not None:
        (tmp_path / "services").write_text(services)
    for name in ("passwd", "group", "services"):
        monkeypatch.setattr(module, name.upper(), tmp_path / name)
    accounts.cache_clear()
    try:
        found = accounts()
    finally:
        accounts.cache_clear()
    people = [Account(1002, frozenset({1002})), Account(1003, frozenset({1003, 2000}))]
    assert [*people, *([STRANGER] if stranger else [])] == [account for account in found if account.user != 1001]


def test_where_there_are_no_lists_nobody_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PASSWD", "GROUP", "SERVICES"):
        monkeypatch.setattr(module, name, tmp_path / "gone")
    accounts.cache_clear()
    assert () == accounts()
    accounts.cache_clear()


def test_a_link_is_as_exposed_as_what_it_leads_to_and_as_where_it_lies(place: Path) -> None:
    private = _file(place, 0o644, 0o700)
    (place / "open").mkdir(mode=0o777)
    (place / "open").chmod(0o777)
    link = place / "open" / "latest.pt"
    link.symlink_to(private)
    found = exposure(str(link), [])
    assert ("0644", ["replace"]) == (found.mode, found.abilities)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="gone"):
        exposure(str(tmp_path / "gone"), [])
