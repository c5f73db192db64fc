"""The tables of the database. Their queries are in db/queries, one module for each reader.

The schema is portable between SQLite and PostgreSQL. The key of every large table begins with `run`, so that a batch, a
judgement and a run's page each read one place. Times are nanoseconds since the epoch, UTC.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    column,
)

from ammeter_server.db.column_types import Document, document, flag, integer, key, text

metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "fk": "fk_%(table_name)s_%(referred_table_name)s"}
)


runs = Table(
    "runs",
    metadata,
    key("id"),
    text("name"),
    text("project", "default"),
    text("state", "running"),
    document("config"),
    document("tags"),
    document("environment"),
    Column("world_size", Integer, nullable=False, default=1),
    integer("started"),
    integer("ended", None),
    integer("judged_version"),
    integer("judged_at"),
    text("claimed_by", None),
    integer("claimed_until"),
    document("fleet_progress"),
    document("evaluation"),
    Column("states", LargeBinary, nullable=False, default=b""),
    Column("external_id", Text, nullable=False, default=lambda context: context.get_current_parameters()["id"]),
    text("owner"),
    text("git_commit"),
    text("driver"),
    Index("ix_runs_started_id", "started", "id"),
    Index("ix_runs_state", "state"),
    Index("ix_runs_ended", "ended"),
    Index("ix_runs_project_started", "project", "started"),
    Index("ix_runs_external_id_project", "external_id", "project", unique=True),
    Index("ix_runs_git_commit_started", "git_commit", "started"),
    Index("ix_runs_driver_started", "driver", "started"),
)
"""One training job. Its first hello creates the row; afterwards only the judge and the deletion of other runs write it.

state: running | ended | lost.
fleet_progress: the progress that the fleet totals already include.
evaluation: conclusions about all ranks together and against the baseline, see judging/cross_rank.py.
states: msgpack {verdict: state} of the verdicts on all ranks together.
external_id: the id that its processes use, see runs/run_ids.py.
owner, git_commit, driver: copies from its tags and environment, for indexes; empty if unknown.
"""

POSTPONED = column("postponed_from").is_not(None)

streams = Table(
    "streams",
    metadata,
    key("run"),
    key("id"),
    text("role", "rank"),
    Column("rank", Integer, nullable=False, default=0),
    Column("world_size", Integer, nullable=False, default=1),
    text("host"),
    Column("pid", BigInteger, nullable=False, default=0),
    integer("started"),
    integer("acknowledged"),
    text("schema", None),
    integer("rows"),
    integer("events"),
    integer("last_step", None),
    integer("last_step_time", None),
    integer("completed_step", None),
    integer("completed_time", None),
    integer("postponed_from", None),
    text("precision", None),
    document("latest"),
    document("counters"),
    document("lost"),
    document("faults"),
    Column("states", LargeBinary, nullable=False, default=b"\x80"),
    flag("alive", True),
    integer("backlog"),
    integer("last_seen"),
    document("bye"),
    text("bye_reason", None),
    integer("version"),
    integer("opened"),
    ForeignKeyConstraint(["run"], ["runs.id"], ondelete="CASCADE"),
    Index("ix_streams_last_seen", "last_seen"),
    Index("ix_streams_host_started", "host", "started"),
    Index("ix_streams_postponed_from", "postponed_from", sqlite_where=POSTPONED, postgresql_where=POSTPONED),
)
"""The record of one process in one attempt. Ingest and the verdicts for the passing of time write it, under its row
lock.

acknowledged: the committed journal offset.
completed_step: the newest step that the process has completed, if the shipper reports it before its row is written.
postponed_from: the first step whose row waits for its verdicts, while the collector is busy; None if none does. States,
counters, latest and precision include the rows before it.
latest: scalar name -> last measured value.
counters: see counters/stream.py of the agent.
lost: reason -> {steps, events}.
states: msgpack {verdict: state}.
last_seen: time of the shipper's last request.
version: increases with each change that the judge has to evaluate.
opened: time of the stream's first registration.
"""

schemas = Table(
    "schemas",
    metadata,
    key("run"),
    key("stream"),
    key("id"),
    Column("body", LargeBinary, nullable=False),
    ForeignKeyConstraint(["run", "stream"], ["streams.run", "streams.id"], ondelete="CASCADE"),
)
"""The columns of a stream's chunks: msgpack of wire.Schema."""

compaction_leases = Table(
    "compaction_leases",
    metadata,
    key("run"),
    key("stream"),
    text("claimed_by", None),
    integer("claimed_until"),
    integer("rows"),
    flag("finished"),
    ForeignKeyConstraint(["run", "stream"], ["streams.run", "streams.id"], ondelete="CASCADE"),
)
"""Progress and lease of the compaction of each stream, see maintenance/compaction.py.

Separate from the stream's row, which incoming batches lock.
rows: the stream's rows when compaction last ran.
finished: the stream has ended and its compaction is complete.
"""

findings = Table(
    "findings",
    metadata,
    key("run"),
    key("stream"),
    key("verdict"),
    document("body"),
    flag("active", True),
    integer("updated"),
    ForeignKeyConstraint(["run", "stream"], ["streams.run", "streams.id"], ondelete="CASCADE"),
)
"""Each verdict's last conclusion about a stream. body: a finding, see ammeter.verdicts.framework.finding."""

incidents = Table(
    "incidents",
    metadata,
    key("run"),
    key("id"),
    text("verdict"),
    Column("number", Integer, nullable=False, default=1),
    text("severity"),
    text("title"),
    text("state", "open"),
    Column("times", Integer, nullable=False, default=1),
    integer("opened"),
    integer("acknowledged", None),
    integer("silenced", None),
    integer("closed", None),
    text("closed_reason", None),
    integer("first_step"),
    integer("opened_step"),
    integer("last_step"),
    text("stream"),
    Column("rank", Integer, nullable=False, default=0),
    text("tensor", None),
    text("module", None),
    text("caller", None),
    text("cause"),
    text("fix"),
    document("evidence"),
    Column("consequences", Document, nullable=False, default=list),
    ForeignKeyConstraint(["run"], ["runs.id"], ondelete="CASCADE"),
    Index("ix_incidents_state_opened", "state", "opened"),
    Index("ix_incidents_opened_id", "opened", "id"),
    Index("ix_incidents_closed", "closed"),
    Index("ix_incidents_verdict_opened", "verdict", "opened"),
)
"""A finding with the lifecycle of its handling. id: "<run>.<verdict>.<number>", so the id contains the run's id.

state: open | acknowledged | closed.
closed_reason: recovered | run ended | superseded | expired | by hand.
times: number of openings of its findings at the last judgement; only a further opening reopens the incident.
silenced: end of the silence, during which nobody is notified.
"""

outbox = Table(
    "outbox",
    metadata,
    key("run"),
    key("id"),
    text("incident"),
    text("kind"),
    text("channel"),
    document("message"),
    text("state", "pending"),
    Column("attempts", Integer, nullable=False, default=0),
    text("error", None),
    integer("created"),
    integer("due"),
    integer("claimed_until"),
    integer("sent", None),
    ForeignKeyConstraint(["run"], ["runs.id"], ondelete="CASCADE"),
    Index("ix_outbox_state_due", "state", "due"),
    Index("ix_outbox_channel_created", "channel", "created"),
)
"""Notifications to deliver, one row per channel. Written with the incident, claimed by a conditional UPDATE.

kind: opened | resolved | silenced.
channel: its name, never its URL, which contains secrets.
state: pending | sent | failed, or told: sent to a stateful channel, and sent again when due.
"""

totals = Table(
    "totals",
    metadata,
    key("project"),
    key("name"),
    key("outcome"),
    key("verdict"),
    key("severity"),
    integer("value"),
)
"""Fleet counters that never decrease.

name: runs (outcome ended | diverged | failed | lost), validations (held | drifted), times (expected | late), steps
(applied | skipped), incidents (verdict, severity), cost (millionths of a dollar). Key columns that a name does not use
are empty.
"""

directives = Table(
    "directives",
    metadata,
    key("run"),
    key("id"),
    key("stream"),
    Column("rank", Integer, nullable=False, default=0),
    text("arm"),
    Column("steps", Integer, nullable=False, default=1),
    text("actor"),
    integer("created"),
    integer("delivered", None),
    ForeignKeyConstraint(["run"], ["runs.id"], ondelete="CASCADE"),
    Index("ix_directives_delivered_created", "delivered", "created"),
)
"""Readings that a person asks of a live run, one row for each of its streams. The response to the stream's next batch
contains the directive; delivered: when that was, claimed by a conditional UPDATE."""

deleted_runs = Table("deleted_runs", metadata, key("run"), integer("at"), text("project"))
"""Deleted runs, recorded so that no shipper recreates them. Nothing else of them is kept.

project: the run's former project; another project may use the id for a run of its own.
"""

baselines = Table("baselines", metadata, key("project"), key("name"), text("run"), integer("pinned"), text("actor"))
"""Runs that are pinned as baselines, see runs/baselines.py. name: of the runs that it is for; empty for the whole
project. A pin outlives no deletion of its run, which the deletion sees to."""

projects = Table("projects", metadata, key("name"), integer("created"))
"""The projects that tokens can belong to."""

tokens = Table(
    "tokens",
    metadata,
    key("sha256"),
    text("name"),
    text("scopes"),
    text("project", None),
    integer("created"),
    integer("expires", None),
)
"""Bearer tokens and the page's sessions, by their SHA-256. scopes: separated by spaces. project: null for all
projects."""

audit = Table(
    "audit",
    metadata,
    Column("at", BigInteger, primary_key=True, autoincrement=False),
    key("id"),
    text("actor"),
    text("action"),
    text("subject"),
    text("detail"),
)
"""Actions by hand or by a token with scope admin, see db/queries/audit.py. Rows are only added; run deletion clears
details."""
