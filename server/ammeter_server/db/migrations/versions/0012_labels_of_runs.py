"""Runs have their owner, commit and driver as columns, and directives, which people ask of live runs"""

import sqlalchemy as sa
from alembic import op

from ammeter_server.db.column_types import Document

revision = "0012"
down_revision = "0011"

DOWNGRADE_LOSES = "the readings that people have asked of live runs"

COLUMNS = ("owner", "git_commit", "driver")

ROWS_PER_READ = 500
"""Runs whose tags and environment are in memory at once."""

INDEXES = (
    ("ix_runs_git_commit_started", "runs", ["git_commit", "started"]),
    ("ix_runs_driver_started", "runs", ["driver", "started"]),
    ("ix_streams_host_started", "streams", ["host", "started"]),
    ("ix_incidents_verdict_opened", "incidents", ["verdict", "opened"]),
    ("ix_outbox_channel_created", "outbox", ["channel", "created"]),
)


def upgrade() -> None:
    for name in COLUMNS:
        op.add_column("runs", sa.Column(name, sa.Text(), nullable=False, server_default=""))
    _fill()
    for name, table, columns in INDEXES:
        op.create_index(name, table, columns, unique=False)
    op.create_table(
        "directives",
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("run", "id", "stream")),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in ("rank", "steps")),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("arm", "actor")),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("delivered", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("run", "id", "stream"),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_directives_runs", ondelete="CASCADE"),
    )
    op.create_index("ix_directives_delivered_created", "directives", ["delivered", "created"], unique=False)


def downgrade() -> None:
    op.drop_table("directives")
    for name, table, _ in INDEXES:
        op.drop_index(name, table_name=table)
    for name in COLUMNS:
        op.drop_column("runs", name)


def _fill() -> None:
    """Copies the labels of existing runs from their documents."""
    runs = sa.table(
        "runs",
        sa.column("id", sa.Text()),
        sa.column("tags", Document()),
        sa.column("environment", Document()),
        *(sa.column(name, sa.Text()) for name in COLUMNS),
    )
    connection, last = op.get_bind(), ""
    while True:
        query = sa.select(runs.c.id, runs.c.tags, runs.c.environment).where(runs.c.id > last)
        rows = connection.execute(query.order_by(runs.c.id).limit(ROWS_PER_READ)).all()
        for run, tags, environment in rows:
            values = {"owner": _text(tags, "owner")}
            values |= {name: _text(environment, name) for name in ("git_commit", "driver")}
            if any(values.values()):
                connection.execute(sa.update(runs).where(runs.c.id == run).values(**values))
        if len(rows) < ROWS_PER_READ:
            return
        last = rows[-1].id


def _text(document: object, name: str) -> str:
    return str((document if isinstance(document, dict) else {}).get(name) or "").strip()
