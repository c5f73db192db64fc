"""Methods of the client for those who act on incidents: facts, channels of notifications, readings of live runs."""

from __future__ import annotations

from collections.abc import Sequence

from ammeter.client.handling_resources import (
    AlertChannel,
    AlertChannels,
    ChannelTest,
    Deliveries,
    Delivery,
    Directive,
    Directives,
    IncidentContext,
    Reach,
    SparklineList,
    Sparklines,
)
from ammeter.client.parameters import column_names, joined
from ammeter.client.requests import Requests, Resource


class Handling:
    """The part of the client that helps to act on an incident."""

    _requests: Requests

    def context(self, incident: str) -> IncidentContext:
        """Returns what a person needs to act on an incident: state of the weights, last good checkpoint, owner."""
        resource = Resource("/api/v1/incidents/{incident}/context", {"incident": incident})
        return self._requests.decoded(resource, IncidentContext)

    def reach(self, incident: str, project: str | None = None) -> Reach:
        """Returns other runs since the incident opened with its verdict, host, commit or driver.

        Args:
            project: of the other runs; default all.
        """
        resource = Resource("/api/v1/incidents/{incident}/reach", {"incident": incident})
        return self._requests.decoded(resource, Reach, {"project": project})

    def deliveries(self, incident: str) -> list[Delivery]:
        """Returns the notifications of an incident on all channels, sent and pending, oldest first.

        An incident that no channel receives has none.
        """
        resource = Resource("/api/v1/incidents/{incident}/deliveries", {"incident": incident})
        return self._requests.decoded(resource, Deliveries).items

    def channels(self, project: str | None = None) -> list[AlertChannel]:
        """Returns the channels of notifications with their newest deliveries.

        Args:
            project: of the deliveries; default all.
        """
        return self._requests.decoded(Resource("/api/v1/channels", {}), AlertChannels, {"project": project}).items

    def test_channel(self, channel: str, severity: str = "ticket") -> ChannelTest:
        """Sends a message through a channel that says it is a test. It is sent once, also if no answer arrives.

        Args:
            channel: the name of one of channels().
            severity: page or ticket.
        """
        resource = Resource("/api/v1/channels/{channel}/test", {"channel": channel}, scope="admin")
        return self._requests.decoded(resource, ChannelTest, {"severity": severity}, "POST", repeated=False)

    def directives(self, run: str) -> list[Directive]:
        """Returns the readings that were asked of a run, newest first, with the answers that have arrived."""
        return self._requests.decoded(self._directives(run), Directives).items

    def ask(self, run: str, arm: str = "origin", steps: int | None = None) -> list[Directive]:
        """Asks a live run for a reading in its next steps, once, and returns all that were asked of it.

        Args:
            arm: origin, which puts hooks on every module to find where NaN or Inf begins; census, of the operators,
                their dtypes, casts and fallbacks; trial, which runs the operator of the next NaN or Inf again; or
                tensors, the statistics of all tensors.
            steps: training steps of the reading; default 5, 1, 20 and 5.
        """
        query = {"arm": arm, "steps": steps}
        return self._requests.decoded(self._directives(run), Directives, query, "POST", repeated=False).items

    def sparklines(
        self, runs: str | Sequence[str], names: str | Sequence[str] = ("loss", "scale"), values: int = 40
    ) -> list[Sparklines]:
        """Returns small curves of up to 100 runs in one request.

        Args:
            runs: ids. Those that do not exist, and runs without a step, are left out.
            names: up to four columns.
            values: of a curve, 8 to 96.
        """
        query = {"runs": joined(runs) or "", "names": column_names(names), "values": values}
        return self._requests.decoded(Resource("/api/v1/sparklines", {}), SparklineList, query).items

    def _directives(self, run: str) -> Resource:
        return Resource("/api/v1/runs/{run}/directives", {"run": run})
