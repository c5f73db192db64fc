"""An alert and a recording as a rule file says them. Which there are stands in rules.py and objectives.py."""

from __future__ import annotations

from dataclasses import dataclass, field

from ammeter_server.channels.message import alert_name


@dataclass(frozen=True)
class Alert:
    """One alerting rule. id: name of its runbook, from which the alert has its own.

    wait: how long the expression holds before it fires, as Prometheus writes durations.
    """

    id: str
    expr: str
    severity: str
    summary: str
    description: str
    wait: str = "0s"
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return alert_name(self.id)

    def rule(self, public_url: str) -> dict[str, object]:
        """As a rule file says it. public_url: of the collector that has the runbook, without a slash at its end."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.wait,
            "labels": {"severity": self.severity, **self.labels},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": f"{public_url}/runbooks/{self.id}",
            },
        }


@dataclass(frozen=True)
class Recording:
    """One recording rule. name: level:metric:operations, as Prometheus' own guide has it."""

    name: str
    expr: str

    def rule(self) -> dict[str, object]:
        """As a rule file says it."""
        return {"record": self.name, "expr": self.expr}
