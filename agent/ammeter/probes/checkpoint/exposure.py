"""Finds other accounts that can read or replace a file.

The result depends on the permissions along the file's path and the accounts of this machine.

The accounts come from local files. A directory service such as LDAP is not queried, because its answer may take long or
never arrive. If one is configured, an additional account without any local group is assumed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import msgspec

PASSWD, GROUP, SERVICES = Path("/etc/passwd"), Path("/etc/group"), Path("/etc/nsswitch.conf")

PERSON_IDS = range(1000, 60001)
"""User ids of people, the default range of login.defs. System accounts are below it, nobody and containers above."""

_NO_LOGIN = ("nologin", "false", "sync")
_LOCAL = {"files", "compat", "systemd", "db", "altfiles", "mymachines", "nss_wrapper"}


class Account(msgspec.Struct, frozen=True):
    """A user id with its groups, which determine the permissions of the account."""

    user: int
    groups: frozenset[int] = frozenset()


STRANGER = Account(-1)
"""An account with only the permissions for `others`, for example a compromised service."""


class Exposure(msgspec.Struct, frozen=True):
    """The access that other accounts have to a file.

    Attributes:
        mode: octal permissions such as '0644'.
        abilities: 'read' and 'replace', as far as they apply.
        by: description of these accounts, '' if there are none.
    """

    mode: str
    abilities: list[str]
    by: str


def exposure(path: str, others: Sequence[Account] | None = None) -> Exposure:
    """Determines the access of other accounts to a file.

    Read access counts only for existing accounts: a world-readable file on a machine of one person is no finding.
    Replacement also counts if only STRANGER could do it. A private folder anywhere above makes a file private. A folder
    that others can write to lets them replace its entries, unless it is sticky like /tmp. The owners of the file and of
    the folders above it do not count.

    Args:
        others: the accounts to check, by default those of this machine.

    Raises:
        OSError: the file does not exist.
    """
    real = os.path.realpath(path)
    file = os.stat(real)
    paths = [list(_folders_above(real)), list(_folders_above(path))]
    owners = {entry.st_uid for entry in (file, *paths[0], *paths[1])}
    present = [account for account in (accounts() if others is None else others) if account.user not in owners]
    readers = [account for account in present if _can_read(account, file, paths[0])]
    writers = [account for account in (*present, STRANGER) if _can_replace(account, file, paths)]
    abilities = [name for name, able in (("read", readers), ("replace", writers)) if able]
    return Exposure(f"{stat.S_IMODE(file.st_mode):04o}", abilities, _description({*readers, *writers}, file, paths))


@cache
def accounts() -> tuple[Account, ...]:
    """Accounts of people on this machine, except the account of this process.

    Root is not included, because it has access to everything anyway.
    """
    groups: dict[str, set[int]] = {}
    for _, _, number, names in _lines(GROUP, 4):
        for name in names.split(","):
            groups.setdefault(name, set()).add(int(number) if number.isdigit() else -1)
    people = [
        Account(int(user), frozenset({int(group), *groups.get(name, ())}))
        for name, _, user, group, _, _, shell in _lines(PASSWD, 7)
        if user.isdigit() and group.isdigit() and int(user) in PERSON_IDS and os.path.basename(shell) not in _NO_LOGIN
    ]
    others = [account for account in people if account.user != os.geteuid()]
    return (*others, STRANGER) if _has_directory_service() else tuple(others)


def _lines(path: Path, parts: int) -> Iterator[list[str]]:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return
    yield from (fields for line in text.splitlines() if len(fields := line.split(":")) == parts)


def _has_directory_service() -> bool:
    try:
        entry = re.search(r"^passwd:([^#\n]*)", SERVICES.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return False
    named = re.sub(r"\[[^]]*\]", " ", entry[1]).split() if entry else []
    return not _LOCAL.issuperset(named)


def _folders_above(path: str) -> Iterator[os.stat_result]:
    """Yields the status of each folder above a path, starting at the root."""
    parts = os.path.dirname(os.path.abspath(path)).split(os.sep)
    for end in range(1, len(parts) + 1):
        yield os.stat(os.sep.join(parts[:end]) or os.sep)


def _has_right(account: Account, entry: os.stat_result, right: int) -> bool:
    """Whether an account has a right to an entry.

    Args:
        right: a permission bit of `others`. For a member of the entry's group the kernel checks only the group's bit,
            which may allow less or more.
    """
    return bool(entry.st_mode & (right << 3 if entry.st_gid in account.groups else right))


def _can_read(account: Account, file: os.stat_result, folders: Sequence[os.stat_result]) -> bool:
    return _has_right(account, file, stat.S_IROTH) and _can_reach(account, folders)


def _can_replace(account: Account, file: os.stat_result, paths: Sequence[Sequence[os.stat_result]]) -> bool:
    writes = _has_right(account, file, stat.S_IWOTH) and _can_reach(account, paths[0])
    return writes or any(_can_replace_entry(account, folders) for folders in paths)


def _can_reach(account: Account, folders: Sequence[os.stat_result]) -> bool:
    return all(_has_right(account, folder, stat.S_IXOTH) for folder in folders)


def _can_replace_entry(account: Account, folders: Sequence[os.stat_result]) -> bool:
    """Whether an account can reach one of these folders and replace an entry in it."""
    for folder in folders:
        if not _has_right(account, folder, stat.S_IXOTH):
            return False
        if _has_right(account, folder, stat.S_IWOTH) and not folder.st_mode & stat.S_ISVTX:
            return True
    return False


def _description(able: set[Account], file: os.stat_result, paths: Sequence[Sequence[os.stat_result]]) -> str:
    """Describes the accounts that can read or replace the file; all accounts if STRANGER can."""
    if not able:
        return ""
    if _can_read(STRANGER, file, paths[0]) or _can_replace(STRANGER, file, paths):
        return "everybody with an account on the machine"
    return f"{len(able)} other account{'s' if len(able) > 1 else ''} on the machine, as of its group,"
