"""Alerting and recording rules as they appear in a Prometheus rule file.

The rules themselves are in ops/prometheus_rules.py and prometheus/slo.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ammeter_server.config.links import Links
from ammeter_server.incidents.runbook_text import alert_name, first_steps


@dataclass(frozen=True)
class Alert:
    """One alerting rule.

    Attributes:
        id: Name of its runbook; the alert's name is derived from it.
        wait: How long the expression has to be true before the alert fires, as a Prometheus duration.
        linger: How long the alert keeps firing after the expression is no longer true.
    """

    id: str
    expr: str
    severity: str
    summary: str
    description: str
    wait: str = "0s"
    linger: str = ""
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return alert_name(self.id)

    def rule(self, links: Links) -> dict[str, object]:
        """Returns the entry of the rule file. Its first steps replace an unreachable runbook."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.wait,
            **({"keep_firing_for": self.linger} if self.linger else {}),
            "labels": {"severity": self.severity, **self.labels},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": links.runbook(self.id),
                "first_steps": _literal(first_steps(self.id)),
            },
        }


def _literal(text: str) -> str:
    """Escapes the text for Prometheus templates, in which two braces begin an action."""
    return text.replace("{{", '{{ "{{" }}')


@dataclass(frozen=True)
class Recording:
    """One recording rule. The name is level:metric:operations, as Prometheus' guide recommends."""

    name: str
    expr: str

    def rule(self) -> dict[str, object]:
        """Returns the entry of the rule file."""
        return {"record": self.name, "expr": self.expr}
