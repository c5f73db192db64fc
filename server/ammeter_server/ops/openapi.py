"""GET /openapi.json: FastAPI's document, with the errors and authentication that all routes share."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request

from ammeter_server.auth import callers
from ammeter_server.http.etags import UNTAGGED_PATHS
from ammeter_server.http.problems import CONTENT_TYPE

router = APIRouter(include_in_schema=False)

PROBLEM = {
    "type": "object",
    "description": "RFC 9457. A refusal by a limit has its name as `limit`; further members are described per route.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "limit": {"type": "string"},
    },
}

PROBLEM_RESPONSE = {
    "description": "The problem, the value and the remedy",
    "content": {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}

IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "schema": {"type": "string"},
    "description": "ETag of a cached response.",
}

SCHEMES = {
    "token": {"type": "http", "scheme": "bearer", "description": "Created by `ammeter-server token create`"},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": callers.COOKIE,
        "description": "Opened by POST /api/v1/session",
    },
}

PUBLIC_PATHS = ("/livez", "/readyz", "/runbooks/", "/api/v1/session")
"""Paths that need no authentication."""

METHODS = ("get", "post", "delete")


@router.get("/openapi.json", dependencies=[Depends(callers.read)])
def read_openapi(request: Request) -> dict[str, Any]:
    return described(request.app)


def described(app: FastAPI) -> dict[str, Any]:
    """Builds the application's OpenAPI document: FastAPI's, plus the parts that all routes share."""
    document = deepcopy(app.openapi())  # FastAPI caches and reuses its own
    parts = document.setdefault("components", {})
    parts.setdefault("schemas", {})["Problem"] = PROBLEM
    for unused in ("HTTPValidationError", "ValidationError"):
        parts["schemas"].pop(unused, None)
    parts["securitySchemes"] = SCHEMES
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if method in METHODS:
                _complete(path, method, operation)
    return document


def _complete(path: str, method: str, operation: dict[str, Any]) -> None:
    """Adds the error responses, ETags and authentication of one operation.

    Every response with a status from 400 on is a problem.
    """
    responses = operation["responses"]
    for status in [response for response in responses if response >= "400"]:
        response = responses.pop(status)
        if status != "422" or "Validation" not in response["description"]:
            responses[status] = PROBLEM_RESPONSE | {"description": response["description"]}
    responses["default"] = PROBLEM_RESPONSE
    if method == "get" and not path.startswith(UNTAGGED_PATHS):
        responses["304"] = {"description": "The response that If-None-Match names is still current"}
        operation.setdefault("parameters", []).append(IF_NONE_MATCH)
    if not path.startswith(PUBLIC_PATHS):
        by_browser: list[dict[str, list[str]]] = [] if path.endswith("/frames") else [{"session": []}]
        operation["security"] = [{"token": []}, *by_browser]
    if method == "post" and "/incidents/" in path:
        header = {"name": callers.CHANGE_HEADER, "in": "header", "schema": {"type": "string"}}
        header["description"] = "Any value; required from a browser."
        operation.setdefault("parameters", []).append(header)
