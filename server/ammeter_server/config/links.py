"""Links for people: the page of a run, and runbooks, which another server may publish."""

from __future__ import annotations

from dataclasses import dataclass

PLACEHOLDER = "{id}"
"""Placeholder for the runbook's name in an address that does not end with it."""


@dataclass(frozen=True)
class Links:
    """Builds links to runs and runbooks.

    Attributes:
        page: The collector's address.
        runbooks: The parent address of the runbooks, or an address with {id}. If empty, links lead to the collector's
            own runbooks, which are unavailable while it is down.
    """

    page: str
    runbooks: str = ""

    def run(self, run: str) -> str:
        return f"{self.page.rstrip('/')}/runs/{run}"

    def runbook(self, name: str) -> str:
        """The address of a runbook.

        The name is the id of a verdict or alert, such as run-lost.
        """
        base = self.runbooks or f"{self.page.rstrip('/')}/runbooks"
        return base.replace(PLACEHOLDER, name) if PLACEHOLDER in base else f"{base.rstrip('/')}/{name}"

    def shown_runbook(self, name: str) -> str:
        """The same for the collector's own page, whose address may differ from the public one."""
        return self.runbook(name) if self.runbooks else f"/runbooks/{name}"
