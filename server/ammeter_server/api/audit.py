"""GET /api/v1/audit: the audit log of tokens, sign-ins and manual changes of incidents."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter

from ammeter_server.context import ContextDep
from ammeter_server.db.json_safe import instant
from ammeter_server.db.queries import audit as query
from ammeter_server.http.pagination import PageSize, PageToken, key_of, token

router = APIRouter(prefix="/api/v1/audit", tags=["audit"])


@dataclass(frozen=True)
class AuditRecord:
    """One entry of the audit log.

    Attributes:
        who: The name of a token, or the user of the command line.
        action: subject.happened, such as token.created.
    """

    id: str
    time: str | None
    who: str
    action: str
    subject: str
    detail: str


@dataclass(frozen=True)
class AuditRecordList:
    items: list[AuditRecord]
    next_page_token: str | None


@router.get("", summary="Audit log, newest first")
def list_audit_records(context: ContextDep, page_size: PageSize = 100, page_token: PageToken = None) -> AuditRecordList:
    """Lists created and revoked tokens, sign-ins to the page, and acknowledged and closed incidents.

    Requires scope admin.
    """
    before = key_of(page_token, (int, str))
    with context.store.reading() as connection:
        rows = query.newest(connection, page_size + 1, before)
    items = [
        AuditRecord(row.id, instant(row.at), row.actor, row.action, row.subject, row.detail) for row in rows[:page_size]
    ]
    more = len(rows) > page_size
    return AuditRecordList(items, token(rows[page_size - 1].at, rows[page_size - 1].id) if more else None)
