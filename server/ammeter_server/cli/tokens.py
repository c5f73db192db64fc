"""`ammeter-server token create | list | revoke` and `audit`: administration on the collector's machine."""

from __future__ import annotations

import argparse
import getpass
import json
import re
import time
from datetime import UTC, datetime

from ammeter_server.auth import tokens
from ammeter_server.auth.tokens import TokenError
from ammeter_server.db import Store
from ammeter_server.db.json_safe import instant
from ammeter_server.db.queries import audit
from ammeter_server.db.queries.tokens import SCOPES

UNITS = {"m": 60, "h": 3600, "d": 86_400}
MAX_AUDIT_LINES = 1000
"""Maximum lines of the audit log that are printed; GET /api/v1/audit returns all pages."""


def create(store: Store, arguments: argparse.Namespace) -> None:
    """Prints a new token, once."""
    scopes = tuple(dict.fromkeys(arguments.scopes.replace(",", " ").split()))
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise TokenError(f"--scopes is {arguments.scopes!r}; use some of {', '.join(SCOPES)}")
    expires = moment(arguments.expires, time.time_ns()) if arguments.expires is not None else None
    token = tokens.create(store, arguments.name, scopes, arguments.project, expires, user())
    about = {"name": arguments.name, "token": token, "scopes": " ".join(scopes), "expires": instant(expires)}
    print(json.dumps(about) if arguments.json else token)


def revoke(store: Store, arguments: argparse.Namespace) -> None:
    """Revokes a token and the page sessions that it opened."""
    tokens.revoke(store, arguments.name, user())
    if arguments.json:
        print(json.dumps({"name": arguments.name, "revoked": True, "tokens_left": len(tokens.listed(store))}))
        return
    print(f"the token {arguments.name!r} and its sessions are no longer valid")
    if not tokens.listed(store):
        print("this was the last token: on loopback the collector now accepts every request from its machine")


def show(store: Store, arguments: argparse.Namespace) -> None:
    """Prints all tokens without their secrets."""
    now = time.time_ns()
    for token in tokens.listed(store):
        about = {
            "name": token.name,
            "scopes": token.scopes,
            "project": token.project,
            "created": instant(token.created),
        }
        about |= {"expires": instant(token.expires), "valid": token.expires is None or token.expires > now}
        print(json.dumps(about) if arguments.json else _line(about))


def show_audit(store: Store, arguments: argparse.Namespace) -> None:
    """Prints the audit log, newest first."""
    with store.reading() as connection:
        rows = audit.newest(connection, MAX_AUDIT_LINES)
    for row in rows:
        about = {"time": instant(row.at), "who": row.actor, "action": row.action, "subject": row.subject}
        about |= {"detail": row.detail}
        print(json.dumps(about) if arguments.json else "  ".join(str(value) for value in about.values() if value))


def moment(text: str, now: int) -> int:
    """Parses 30d, 12h, 45m or a date.

    Returns:
        Nanoseconds since the epoch.

    Raises:
        TokenError: The text is invalid or not in the future.
    """
    after = re.fullmatch(r"(\d{1,6})([mhd])", text)
    try:
        if after:
            time_ns = now + int(after[1]) * UNITS[after[2]] * 10**9
        else:
            when = datetime.fromisoformat(text)
            time_ns = int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()) * 10**9
    except (ValueError, OverflowError):
        time_ns = 0
    if not now < time_ns < 2**63:
        raise TokenError(f"--expires is {text!r}; use a duration such as 30d, 12h or 45m, or a future date in UTC")
    return time_ns


def _line(about: dict[str, object]) -> str:
    project = f"project {about['project']}" if about["project"] else "all projects"
    until = "never expires"
    if about["expires"]:
        until = f"{'expires' if about['valid'] else 'EXPIRED'} {about['expires']}"
    return "  ".join((str(about["name"]), str(about["scopes"]), project, f"created {about['created']}", until))


def user() -> str:
    """The user of the command line, for the audit log."""
    try:
        return f"command line ({getpass.getuser()})"
    except (KeyError, OSError):  # a user without a name, as in some containers
        return "command line"
