"""Creates, lists and revokes bearer tokens, and loads the token file. Only hashes are stored."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Sequence
from typing import Any

from ammeter_server.config.settings import PREFIX, Settings, SettingsError, is_private_to_this_machine
from ammeter_server.db import Row, Store
from ammeter_server.db.json_safe import plain
from ammeter_server.db.queries import audit
from ammeter_server.db.queries import tokens as query
from ammeter_server.db.queries.tokens import FROM_FILE, SCOPES, SESSION_OF

MAX_NAME_CHARS = 200
MAX_PROJECT_CHARS = 1_024


class TokenError(ValueError):
    """A token cannot be created or found; the message gives the reason to the user."""


def create(
    store: Store,
    name: str,
    scopes: Sequence[str],
    project: str | None = None,
    expires: int | None = None,
    by: str = "command line",
) -> str:
    """Creates a token of 256 random bits.

    Only its hash is stored, so the token is shown once.

    Args:
        expires: Nanoseconds since the epoch.
        by: The creator, for the audit log.

    Raises:
        TokenError: The name or project is invalid, or the name exists.
    """
    _check_name(name)
    _check_project(project)
    token, now = secrets.token_urlsafe(32), time.time_ns()
    with store.writing() as connection:
        if query.named(connection, name):
            raise TokenError(f"there is a token {name!r} already; choose another name, or revoke it first")
        query.add(connection, fingerprint(token), name, " ".join(scopes), now, project, expires)
        audit.add(connection, now, by, "token.created", name, " ".join(scopes) + (f" for {project}" if project else ""))
    return token


def revoke(store: Store, name: str, by: str = "command line") -> None:
    """Revokes a token and the page sessions that it opened.

    Raises:
        TokenError: No token has this name.
    """
    with store.writing() as connection:
        if not query.named(connection, name):
            known = ", ".join(sorted({repr(token.name) for token in query.all_of(connection)})) or "none"
            raise TokenError(f"there is no token {name!r}; there are {known}")
        query.remove_named(connection, name)
        audit.add(connection, time.time_ns(), by, "token.revoked", name)


def listed(store: Store) -> Sequence[Row[Any]]:
    """All tokens, the oldest first, without sessions of the page."""
    with store.reading() as connection:
        return [token for token in query.all_of(connection) if not token.name.startswith(SESSION_OF)]


def load_file(settings: Settings, store: Store) -> None:
    """Makes the settings' token valid, with every scope."""
    if not settings.token:
        return
    now = time.time_ns()
    with store.writing() as connection:
        if query.replace_from_file(connection, fingerprint(settings.token), " ".join(SCOPES), now):
            audit.add(connection, now, "settings", "token.replaced", FROM_FILE)


def check_guarded(settings: Settings, store: Store) -> None:
    """Checks that a collector which others can reach has a token.

    Raises:
        SettingsError: It has none.
    """
    if settings.token or is_private_to_this_machine(settings):
        return
    with store.reading() as connection:
        guarded = query.any_exists(connection)
    if not guarded:
        raise SettingsError(
            f"{PREFIX}PUBLIC_URL is {settings.public_url[:200]!r}, where others reach the collector, and there is no "
            f"token; set {PREFIX}TOKEN_FILE to a file with a long random token, or create one with "
            "`ammeter-server token create`"
        )


def fingerprint(token: str, kind: str = "token") -> str:
    """The hash under which a secret is stored.

    A session's hash is keyed, so that a session never passes for a token or the reverse.
    """
    if kind == "token":
        return hashlib.sha256(token.encode()).hexdigest()
    return hmac.digest(kind.encode(), token.encode(), "sha256").hex()


def _check_project(project: str | None) -> None:
    """Refuses an empty project, such as an unset variable: its token would reach all projects."""
    if project is not None and not (project.strip() and project.isprintable() and len(project) <= MAX_PROJECT_CHARS):
        remedy = f"use 1 to {MAX_PROJECT_CHARS} printable characters, or omit it for every project"
        raise TokenError(f"the project is {project[:80]!r}; {remedy}")


def _check_name(name: str) -> None:
    reserved = name == FROM_FILE or name.startswith(SESSION_OF)
    if not name.strip() or len(name) > MAX_NAME_CHARS or not name.isprintable() or plain(name) != name or reserved:
        remedy = f"use 1 to {MAX_NAME_CHARS} printable characters, and no reserved name"
        raise TokenError(f"the name is {name[:80]!r}; {remedy}")
