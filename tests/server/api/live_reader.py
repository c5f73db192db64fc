"""Reads the updates of a live run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.server.feeding import curves


@dataclass
class Reader:
    """The updates received so far, and the id to continue from."""

    id: str | None = None
    runs: list[dict[str, Any]] = field(default_factory=list)
    incidents: list[list[dict[str, Any]]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    steps: dict[str, list[int]] = field(default_factory=dict)
    messages: int = 0

    def listen(self, client: httpx.Client, run: str, enough: Callable[[], Any], **asked: Any) -> None:
        """Reads one answer until it has read enough or the answer ends."""
        headers = {"Last-Event-ID": self.id} if self.id else {}
        with client.stream("GET", f"/api/v1/runs/{run}/live", params=asked, headers=headers) as answer:
            assert (200, "text/event-stream; charset=utf-8") == (answer.status_code, answer.headers["content-type"])
            given = ""
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    given = value
                elif name == "data":
                    self.take(json.loads(value))
                    self.id = given
                if enough():
                    return

    def take(self, update: dict[str, Any]) -> None:
        self.messages += 1
        self.runs += [update["run"]] if update["run"] else []
        self.incidents += [update["incidents"]] if update["incidents"] is not None else []
        self.events += [event["id"] for event in update["events"]]
        for curve in curves(update["series"]) if update["series"] else ():
            self.steps.setdefault(f"{curve['rank']} {curve['name']}", []).extend(curve["steps"])
