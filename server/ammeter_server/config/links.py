"""Links for people: the page of a run, and runbooks, which another server may publish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode

LOG_PLACEHOLDERS = ("run", "name", "project", "host", "job", "from", "to")
"""What the address of logs can contain in braces. from, to: milliseconds since the epoch."""

PLACEHOLDER = "{id}"
"""Placeholder for the runbook's name in an address that does not end with it."""


@dataclass(frozen=True)
class Links:
    """Builds links to runs and runbooks.

    Attributes:
        page: The collector's address.
        runbooks: The parent address of the runbooks, or an address with {id}. If empty, links lead to the collector's
            own runbooks, which are unavailable while it is down.
        grafana: The address of a Grafana with the boards of Ammeter; empty without one.
        alertmanager: The address at which people open Alertmanager; empty without one.
        logs: The address of a run's log, with placeholders; empty without one.
    """

    page: str
    runbooks: str = ""
    grafana: str = ""
    alertmanager: str = ""
    logs: str = ""

    def run(self, run: str) -> str:
        return f"{self.page.rstrip('/')}/runs/{run}"

    def incident(self, run: str, verdict: str) -> str:
        """The card of an incident on the page of its run."""
        return f"{self.run(run)}#{verdict}"

    def runbook(self, name: str) -> str:
        """The address of a runbook.

        The name is the id of a verdict or alert, such as run-lost.
        """
        base = self.runbooks or f"{self.page.rstrip('/')}/runbooks"
        return base.replace(PLACEHOLDER, name) if PLACEHOLDER in base else f"{base.rstrip('/')}/{name}"

    def shown_runbook(self, name: str) -> str:
        """The same for the collector's own page, whose address may differ from the public one."""
        return self.runbook(name) if self.runbooks else f"/runbooks/{name}"

    def board(self, run: str, project: str) -> str:
        """The Grafana board of the run; empty without a Grafana."""
        if not self.grafana:
            return ""
        variables = urlencode({"var-project": project, "var-run": run})
        return f"{self.grafana.rstrip('/')}/d/ammeter-debug?{variables}"

    def silences(self, labels: Mapping[str, str]) -> str:
        """The form of Alertmanager for a new silence of the alert with these labels; empty without an Alertmanager."""
        if not self.alertmanager:
            return ""
        matchers = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
        return f"{self.alertmanager.rstrip('/')}/#/silences/new?filter={quote('{' + matchers + '}')}"

    def log(self, values: Mapping[str, str]) -> str:
        """The log of a run; empty without an address, or if the run lacks a value that the address needs."""
        address = self.logs
        for name in LOG_PLACEHOLDERS:
            if f"{{{name}}}" in address:
                if not values.get(name):
                    return ""
                address = address.replace(f"{{{name}}}", quote(values[name], safe=""))
        return address


def _escaped(value: str) -> str:
    """A value in the quotes of a matcher."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
