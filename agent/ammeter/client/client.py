"""The client: one method per resource of the collector's API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Self, TypeVar

from ammeter.client import curves
from ammeter.client.curves import Curve
from ammeter.client.handling import Handling
from ammeter.client.parameters import column_names, instant, joined
from ammeter.client.requests import Requests, Resource
from ammeter.client.resources import (
    Comparison,
    Event,
    Incident,
    Page,
    PinnedBaseline,
    PinnedBaselines,
    Run,
    SentComparison,
    TensorStat,
)
from ammeter.environment.settings import settings

T = TypeVar("T")

DEFAULT_SECONDS = 30.0
"""Time limit of one answer, that of the shipper."""

DEFAULT_REPEATS = 3
"""Repeats within about two seconds, as long as a collector needs to restart."""

MAX_POINTS = 100_000
"""The largest number of points of a curve that the API sends."""


class Client(Handling):
    """Reads runs from a collector, and changes incidents. Threads may share it.

    Every method raises ClientError with the problem and the remedy. Lists are iterators that request a page when it is
    needed, newest first.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = DEFAULT_SECONDS,
        repeats: int = DEFAULT_REPEATS,
    ) -> None:
        """Sends nothing yet.

        Args:
            url: the collector, http:// or https://; default AMMETER_URL.
            token: a token with scope read; default AMMETER_TOKEN. Not needed by a collector without tokens.
            timeout: seconds within which a whole answer must arrive.
            repeats: how often a request is repeated while the collector is not available.

        Raises:
            ValueError: there is no URL, or it has another scheme.
        """
        chosen = settings(url)
        if chosen.url is None:
            raise ValueError("url is missing and AMMETER_URL is not set; use Client('http://127.0.0.1:8480')")
        if not timeout > 0 or repeats < 0:
            raise ValueError(f"timeout is {timeout!r} and repeats is {repeats!r}; use seconds above 0, and 0 or more")
        self._requests = Requests(chosen.url, token or chosen.token, timeout, repeats)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections. The client opens new ones if it is used again."""
        self._requests.close()

    def runs(
        self, *, state: str | None = None, project: str | None = None, owner: str | None = None,
        search: str | None = None, tag: str | Sequence[str] = (), broken: bool = False, page_size: int = 100,
    ) -> Iterator[Run]:  # fmt: skip
        """Yields runs, the most recently started first.

        Args:
            state: running, ended or lost.
            search: words, all of which are in the name, owner, tags or ids.
            tag: KEY=VALUE, or several of them.
            broken: only runs with open incidents.
        """
        query: dict[str, object] = {"state": state, "project": project, "owner": owner, "q": search, "tag": tag or None}
        query |= {"broken": "true" if broken else None, "page_size": page_size}
        yield from self._listed(Resource("/api/v1/runs", {}), Run, query)

    def run(self, run: str) -> Run:
        """Returns a run by its `id`; a token of a project can use its `external_id`, too."""
        return self._requests.decoded(Resource("/api/v1/runs/{run}", {"run": run}), Run)

    def incidents(
        self,
        run: str | None = None,
        *,
        state: str | Sequence[str] = (),
        severity: str | None = None,
        verdict: str | Sequence[str] = (),
        rank: int | Sequence[int] = (),
        project: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        page_size: int = 100,
    ) -> Iterator[Incident]:
        """Yields incidents of one run or of all, the most recently opened first.

        Args:
            state: open, acknowledged, closed, or several of them.
            severity: page or ticket.
            rank: only with a run.
            project: only without a run.
            since, until: limits of the time at which they opened.
        """
        if (rank != () and run is None) or (project is not None and run is not None):
            raise ValueError("rank selects incidents of one run, project those of all runs; give one with run, or none")
        resource = Resource("/api/v1/incidents", {})
        if run is not None:
            resource = Resource("/api/v1/runs/{run}/incidents", {"run": run})
        query = {
            "state": joined(state),
            "severity": severity,
            "verdict": joined(verdict),
            "rank": joined(rank),
            "project": project,
            "since": instant(since),
            "until": instant(until),
            "page_size": page_size,
        }
        yield from self._listed(resource, Incident, query)

    def incident(self, incident: str) -> Incident:
        """Returns an incident by its id."""
        return self._requests.decoded(Resource("/api/v1/incidents/{incident}", {"incident": incident}), Incident)

    def acknowledge(self, incident: str) -> Incident:
        """Acknowledges an incident and returns it. Can be repeated."""
        return self._changed(incident, "acknowledge")

    def silence(self, incident: str, hours: float = 8) -> Incident:
        """Suppresses notifications of an incident for these hours from now, and returns it."""
        return self._changed(incident, "silence", hours=hours)

    def close_incident(self, incident: str) -> Incident:
        """Closes an incident and returns it. It opens again if the verdict finds the same fault again."""
        return self._changed(incident, "close")

    def events(
        self,
        run: str,
        *,
        name: str | Sequence[str] = (),
        rank: int | Sequence[int] = (),
        first: int | None = None,
        last: int | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        page_size: int = 100,
    ) -> Iterator[Event]:
        """Yields events of a run, newest first.

        Args:
            name: names such as step.skipped or scaler.*; default all.
            first, last: limits of the step, as the process counts it.
        """
        query = {
            "name": joined(name),
            "rank": joined(rank),
            "from": first,
            "to": last,
            "since": instant(since),
            "until": instant(until),
            "page_size": page_size,
        }
        yield from self._listed(Resource("/api/v1/runs/{run}/events", {"run": run}), Event, query)

    def curves(
        self,
        run: str,
        names: str | Sequence[str],
        *,
        rank: int | Sequence[int] = (),
        first: int | None = None,
        last: int | None = None,
        points: int = MAX_POINTS,
        axis: str = "run",
        replaced: bool = False,
        merged: bool = False,
    ) -> Iterator[Curve]:
        """Yields one curve per name and stream that has values.

        Args:
            names: columns such as loss; grad.norm:head.weight for a tensor.
            first, last: limits of the step.
            points: more values than this are reduced to so many, with all extremes.
            axis: steps continue over all attempts of the run, or with "life" begin at 0 in each.
            replaced: includes steps that a later attempt replaces.
            merged: merges gradient norms of all ranks or shards.
        """
        resource = Resource("/api/v1/runs/{run}/series", {"run": run})
        query: dict[str, object] = {
            "names": column_names(names),
            "rank": joined(rank),
            "from": first,
            "to": last,
            "points": points,
            "axis": axis,
            "replaced": "true" if replaced else None,
            "merged": "true" if merged else None,
            "format": "float32",
        }
        while True:
            body = self._requests.read(resource, query)
            try:
                page, following = curves.decode(body)
            except ValueError as error:
                raise self._requests.unreadable(resource, str(error)) from None
            yield from page
            if following is None:
                return
            query["page_token"] = following

    def tensors(
        self, run: str, stat: str | Sequence[str] = "grad.norm", *, rank: int | None = None, page_size: int = 1000
    ) -> Iterator[TensorStat]:
        """Yields the latest reading of each tensor's statistics, in the order of the parameters."""
        query = {"stat": joined(stat), "rank": rank, "page_size": page_size}
        yield from self._listed(Resource("/api/v1/runs/{run}/tensors", {"run": run}), TensorStat, query)

    def compare(
        self, run: str, baseline: str | None = None, *, names: str | Sequence[str] = (), first: int | None = None,
        last: int | None = None, points: int = MAX_POINTS,
    ) -> Comparison:  # fmt: skip
        """Compares a run with a baseline at the steps of both.

        Args:
            baseline: by default the one that the run names, or that is pinned for its name or project.
            names: further columns to return.
            first, last: limits of the curves' steps; numbers and findings always cover the whole run.
        """
        resource = Resource("/api/v1/runs/{run}/compare", {"run": run})
        if baseline is not None:
            resource = Resource("/api/v1/runs/{run}/compare/{baseline}", {"run": run, "baseline": baseline})
        query = {"names": column_names(names), "from": first, "to": last, "points": points}
        return self._requests.decoded(resource, SentComparison, query).with_arrays()

    def compare_groups(
        self, a: Sequence[str], b: Sequence[str], *, metric: str | None = None, better: str | None = None,
        project: str | None = None, ignore: str = "",
    ) -> dict[str, Any]:  # fmt: skip
        """Compares two groups of runs with several seeds each, and returns the decision as the API has it.

        Args:
            a, b: ids of runs; with a project also names and tags such as recipe=bf16, which mean all runs with them.
            metric: such as val_loss; by default the first validation of all runs, else the training loss.
            better: lower or higher; by default as the tag better.NAME of the runs says.
            ignore: settings that may differ within a group, separated by commas.
        """
        resource = Resource("/api/v1/compare", {})
        query = {"a": column_names(a), "b": column_names(b), "metric": metric, "better": better}
        query |= {"project": project, "ignore": ignore or None}
        return self._requests.decoded(resource, dict[str, Any], query)

    def baselines(self, project: str | None = None) -> list[PinnedBaseline]:
        """Returns the runs that are pinned as baselines."""
        return self._requests.decoded(Resource("/api/v1/baselines", {}), PinnedBaselines, {"project": project}).items

    def pin_baseline(self, run: str, of: str = "project") -> list[PinnedBaseline]:
        """Pins a run as the baseline of its project or, with of="name", of the runs with its name."""
        return self._pinned(run, of, "POST")

    def unpin_baseline(self, run: str, of: str = "project") -> list[PinnedBaseline]:
        """Removes the pin of a run."""
        return self._pinned(run, of, "DELETE")

    def _pinned(self, run: str, of: str, method: str) -> list[PinnedBaseline]:
        resource = Resource("/api/v1/runs/{run}/baseline", {"run": run})
        return self._requests.decoded(resource, PinnedBaselines, {"of": of}, method).items

    def _listed(self, resource: Resource, kind: type[T], query: Mapping[str, object]) -> Iterator[T]:
        following: str | None = None
        while True:
            page = self._requests.decoded(resource, Page[kind], {**query, "page_token": following})  # type: ignore[valid-type]
            yield from page.items
            following = page.next_page_token
            if following is None:
                return

    def _changed(self, incident: str, action: str, **query: object) -> Incident:
        resource = Resource(f"/api/v1/incidents/{{incident}}/{action}", {"incident": incident})
        return self._requests.decoded(resource, Incident, query, "POST")
