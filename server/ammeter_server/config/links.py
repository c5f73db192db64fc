"""Where links lead that people are given: a run's page, and the runbook, which need not be the collector's."""

from __future__ import annotations

from dataclasses import dataclass

PLACE = "{id}"
"""In the address of the runbooks, where the name of one belongs that does not stand at the end."""


@dataclass(frozen=True)
class Links:
    """page: the collector's address. runbooks: the address below which runbooks lie, or one with {id} in it; without
    one the collector's own are linked to, which nobody can read while it is down."""

    page: str
    runbooks: str = ""

    def run(self, run: str) -> str:
        return f"{self.page.rstrip('/')}/runs/{run}"

    def runbook(self, name: str) -> str:
        """name: of a verdict or of an alert, such as run-lost."""
        base = self.runbooks or f"{self.page.rstrip('/')}/runbooks"
        return base.replace(PLACE, name) if PLACE in base else f"{base.rstrip('/')}/{name}"

    def shown_runbook(self, name: str) -> str:
        """The same for the collector's own page, which may be reached by another address than the public one."""
        return self.runbook(name) if self.runbooks else f"/runbooks/{name}"
