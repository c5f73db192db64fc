"""Liveness and readiness of the collector."""

from __future__ import annotations

from fastapi import APIRouter

from ammeter_server.context import ContextDep
from ammeter_server.db import StoreAwayError, StoreBrokenError, StoreFullError, migrations, permissions
from ammeter_server.http.problems import Problem, of_store

router = APIRouter(tags=["health"])


@router.get("/livez", summary="The process responds")
async def live() -> dict[str, str]:
    return {"status": "alive"}


@router.get("/readyz", summary="The database responds and has this version's schema")
def ready(context: ContextDep) -> dict[str, str]:
    try:
        faults = context.store.faults
        if faults.broken:
            raise StoreBrokenError(faults.broken)
        version = migrations.current(context.store)
        if faults.refusing:
            permissions.check(context.store)
            faults.refusing = ""
    except (StoreAwayError, StoreFullError) as error:
        raise of_store(error) from error
    except Exception as error:
        raise Problem(503, f"the database does not respond: {type(error).__name__}") from error
    wanted = migrations.newest()
    if version is not None and not migrations.is_known(version):
        raise Problem(503, migrations.unknown_version_error(version))
    if version != wanted:
        raise Problem(
            503, f"the database has schema {version}, this version needs {wanted}; run `ammeter-server migrate`"
        )
    return {"status": "ready", "database": str(version)}
