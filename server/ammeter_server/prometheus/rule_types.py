"""An alert and a recording as a rule file says them. Which there are stands in rules.py and objectives.py."""

from __future__ import annotations

from dataclasses import dataclass, field

from ammeter_server.config.links import Links
from ammeter_server.incidents.runbook_text import first_steps
from ammeter_server.incidents.wording import alert_name


@dataclass(frozen=True)
class Alert:
    """One alerting rule. id: name of its runbook, from which the alert has its own.

    wait: how long the expression holds before it fires, as Prometheus writes durations. linger: how long it fires on
    when the expression holds no more.
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
        """As a rule file says it, with what to do first: the runbook may be out of reach when it is needed."""
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
    """The text as Prometheus' templates have to have it, in which two braces begin an action."""
    return text.replace("{{", '{{ "{{" }}')


@dataclass(frozen=True)
class Recording:
    """One recording rule. name: level:metric:operations, as Prometheus' own guide has it."""

    name: str
    expr: str

    def rule(self) -> dict[str, object]:
        """As a rule file says it."""
        return {"record": self.name, "expr": self.expr}
