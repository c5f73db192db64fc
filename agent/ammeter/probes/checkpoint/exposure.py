"""Who else on this machine can read or replace a file: the accounts that exist, by the permissions along its path.

Accounts are read from the local files. A directory service such as LDAP is not asked, for its answer may take long or
never come: where one is configured, somebody without any group of ours is taken to exist.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PASSWD, GROUP, SERVICES = Path("/etc/passwd"), Path("/etc/group"), Path("/etc/nsswitch.conf")

PEOPLE = range(1000, 60001)
"""User ids of people, as login.defs has them by default. System accounts are below, nobody and containers above."""

_NO_LOGIN = ("nologin", "false", "sync")
_LOCAL = {"files", "compat", "systemd", "db", "altfiles", "mymachines", "nss_wrapper"}


@dataclass(frozen=True)
class Account:
    """Whoever has it may do what its id and its groups allow."""

    user: int
    groups: frozenset[int] = frozenset()


STRANGER = Account(-1)
"""Nobody in particular: what the permissions for all others allow. A program that was broken into, for one."""


@dataclass(frozen=True)
class Exposure:
    """mode: octal permissions such as '0644'. abilities: 'read', 'replace'. by: who can, in words, '' for nobody."""

    mode: str
    abilities: list[str]
    by: str


def exposure(path: str, others: Sequence[Account] | None = None) -> Exposure:
    """What others can do with a file. others: the accounts that count; those of this machine where none are given.

    To read needs somebody who is there: a file that all may read, on a machine of one person, is no finding. To replace
    needs nobody in particular. A private folder anywhere above makes a file private; a folder that others can write to
    lets them replace what is in it, unless it is sticky as /tmp is. Whoever owns the file or a folder above is at home
    there and does not count. Raises OSError where the file is not there.
    """
    real = os.path.realpath(path)
    file = os.stat(real)
    ways = [list(_above(real)), list(_above(path))]
    owners = {each.st_uid for each in (file, *ways[0], *ways[1])}
    present = [each for each in (accounts() if others is None else others) if each.user not in owners]
    readers = [each for each in present if _can_read(each, file, ways[0])]
    writers = [each for each in (*present, STRANGER) if _can_replace(each, file, ways)]
    abilities = [name for name, found in (("read", readers), ("replace", writers)) if found]
    return Exposure(f"{stat.S_IMODE(file.st_mode):04o}", abilities, _by({*readers, *writers}, file, ways))


@cache
def accounts() -> tuple[Account, ...]:
    """Accounts of people on this machine, but for this process's own and root's, which may do everything anyway."""
    groups: dict[str, set[int]] = {}
    for _, _, number, names in _lines(GROUP, 4):
        for name in names.split(","):
            groups.setdefault(name, set()).add(int(number) if number.isdigit() else -1)
    found = [
        Account(int(user), frozenset({int(group), *groups.get(name, ())}))
        for name, _, user, group, _, _, shell in _lines(PASSWD, 7)
        if user.isdigit() and group.isdigit() and int(user) in PEOPLE and os.path.basename(shell) not in _NO_LOGIN
    ]
    others = [each for each in found if each.user != os.geteuid()]
    return (*others, STRANGER) if _has_directory_service() else tuple(others)


def _lines(path: Path, parts: int) -> Iterator[list[str]]:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return
    yield from (fields for line in text.splitlines() if len(fields := line.split(":")) == parts)


def _has_directory_service() -> bool:
    try:
        found = re.search(r"^passwd:([^#\n]*)", SERVICES.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return False
    named = re.sub(r"\[[^]]*\]", " ", found[1]).split() if found else []
    return not _LOCAL.issuperset(named)


def _above(path: str) -> Iterator[os.stat_result]:
    """The folders that lead to a path, from the root on."""
    parts = os.path.dirname(os.path.abspath(path)).split(os.sep)
    for end in range(1, len(parts) + 1):
        yield os.stat(os.sep.join(parts[:end]) or os.sep)


def _may(account: Account, entry: os.stat_result, right: int) -> bool:
    """right: of the bits of `others`; the kernel looks at the group's instead for a member, allowing less or more."""
    return bool(entry.st_mode & (right << 3 if entry.st_gid in account.groups else right))


def _can_read(account: Account, file: os.stat_result, folders: Sequence[os.stat_result]) -> bool:
    return _may(account, file, stat.S_IROTH) and _gets_to(account, folders)


def _can_replace(account: Account, file: os.stat_result, ways: Sequence[Sequence[os.stat_result]]) -> bool:
    writes = _may(account, file, stat.S_IWOTH) and _gets_to(account, ways[0])
    return writes or any(_can_exchange(account, folders) for folders in ways)


def _gets_to(account: Account, folders: Sequence[os.stat_result]) -> bool:
    return all(_may(account, each, stat.S_IXOTH) for each in folders)


def _can_exchange(account: Account, folders: Sequence[os.stat_result]) -> bool:
    """Whether it can exchange an entry of one of these folders, and gets there."""
    for each in folders:
        if not _may(account, each, stat.S_IXOTH):
            return False
        if _may(account, each, stat.S_IWOTH) and not each.st_mode & stat.S_ISVTX:
            return True
    return False


def _by(found: set[Account], file: os.stat_result, ways: Sequence[Sequence[os.stat_result]]) -> str:
    """A stranger who could do the same, were he there, means that all can."""
    if not found:
        return ""
    if _can_read(STRANGER, file, ways[0]) or _can_replace(STRANGER, file, ways):
        return "everybody with an account on the machine"
    return f"{len(found)} other account{'s' if len(found) > 1 else ''} on the machine, as of its group,"
