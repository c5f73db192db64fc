"""Step data is stored as columns and partitioned by day"""

from typing import Any

import msgspec
import numpy as np
import sqlalchemy as sa
from alembic import op

from ammeter.wire import columns as block
from ammeter.wire import frames
from ammeter_server.db import column_codec, integer_codec

revision = "0004"
down_revision = "0003"

DOWNGRADE_LOSES = "nothing; columns are converted to blocks, which needs as much free disk space as the database uses"

DAY = 86400 * 10**9


def upgrade() -> None:
    op.add_column("streams", sa.Column("opened", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_table(
        "keeping",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("claimed_by", sa.Text(), nullable=True),
        sa.Column("claimed_until", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("finished", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run", "stream"], ["streams.run", "streams.id"], name=op.f("fk_keeping_streams"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run", "stream"),
    )
    op.drop_index("ix_events_run_time", table_name="events")
    op.rename_table("chunks", "chunks_before")
    op.rename_table("events", "events_before")
    by_day: dict[str, Any] = {"postgresql_partition_by": "RANGE (day)"}
    op.create_table(
        "chunks",
        *_key(("first_step", sa.BigInteger())),
        *_of_chunks(),
        sa.PrimaryKeyConstraint("run", "stream", "first_step", "day", name="chunks_by_day_pkey"),
        **by_day,
    )
    op.create_table(
        "segments",
        *_key(("first_step", sa.BigInteger())),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("parts", sa.Integer(), nullable=False),
        sa.Column("schema", sa.Text(), nullable=True),
        sa.Column("steps", sa.LargeBinary(), nullable=False),
        sa.Column("times", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run", "stream", "first_step", "day"),
        **by_day,
    )
    op.create_table(
        "columns",
        *_key(("part", sa.BigInteger()), ("first_step", sa.BigInteger())),
        sa.Column("head", sa.LargeBinary(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run", "stream", "part", "first_step", "day"),
        **by_day,
    )
    op.create_table(
        "events",
        *_key(("number", sa.BigInteger())),
        *_of_events(),
        sa.PrimaryKeyConstraint("run", "stream", "number", "day", name="events_by_day_pkey"),
        **by_day,
    )
    op.create_index("ix_events_run_time", "events", ["run", "time", "stream", "number"], unique=False)
    for name in ("chunks", "segments", "columns", "events"):
        op.create_index(f"ix_{name}_day", name, ["day"], unique=False)
    _fill_days()
    op.drop_table("chunks_before")
    op.drop_table("events_before")


def downgrade() -> None:
    op.drop_index("ix_events_run_time", table_name="events")
    for name in ("chunks", "events"):
        op.drop_index(f"ix_{name}_day", table_name=name)
        op.rename_table(name, f"{name}_after")
    op.create_table(
        "chunks",
        *_key(("first_step", sa.BigInteger()))[:-1],
        *_of_chunks(),
        sa.ForeignKeyConstraint(["run", "stream"], ["streams.run", "streams.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "stream", "first_step", name="chunks_pkey"),
    )
    op.create_table(
        "events",
        *_key(("number", sa.BigInteger()))[:-1],
        *_of_events(),
        sa.ForeignKeyConstraint(["run", "stream"], ["streams.run", "streams.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "stream", "number", name="events_pkey"),
    )
    op.create_index("ix_events_run_time", "events", ["run", "time", "stream", "number"], unique=False)
    known = "EXISTS (SELECT 1 FROM streams WHERE streams.run = old.run AND streams.id = old.stream)"
    op.execute(
        f"INSERT INTO events SELECT run, stream, number, name, step, time, data FROM events_after AS old WHERE {known}"
    )
    op.execute(
        "INSERT INTO chunks SELECT run, stream, first_step, last_step, first_time, last_time, rows, columns, "
        f"schema, received, data FROM chunks_after AS old WHERE {known} AND NOT EXISTS (SELECT 1 FROM segments "
        "WHERE segments.run = old.run AND segments.stream = old.stream AND segments.last_step >= old.first_step)"
    )
    _blocks_of_segments(op.get_bind())
    for name in ("chunks_after", "events_after", "segments", "columns", "keeping"):
        op.drop_table(name)
    op.drop_column("streams", "opened")


def _key(*parts: tuple[str, Any]) -> list[sa.Column[Any]]:
    names = [sa.Column("run", sa.Text(), nullable=False), sa.Column("stream", sa.Text(), nullable=False)]
    parts_and_day = [
        sa.Column(name, kind, autoincrement=False, nullable=False) for name, kind in (*parts, ("day", sa.BigInteger()))
    ]
    return [*names, *parts_and_day]


def _of_chunks() -> list[sa.Column[Any]]:
    return [
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("first_time", sa.BigInteger(), nullable=False),
        sa.Column("last_time", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("columns", sa.Integer(), nullable=False),
        sa.Column("schema", sa.Text(), nullable=True),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
    ]


def _of_events() -> list[sa.Column[Any]]:
    return [
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
    ]


def _fill_days() -> None:
    """Copies the rows with the day of their receipt; for events, the day of their stream's last request."""
    if op.get_bind().dialect.name == "postgresql":
        for name in ("chunks", "columns", "segments"):  # compressed already; a second compression gains nothing
            for column in {"segments": ("steps", "times"), "columns": ("head", "data")}.get(name, ("data",)):
                op.execute(f"ALTER TABLE {name} ALTER COLUMN {column} SET STORAGE EXTERNAL")
        for name in ("chunks", "segments", "columns", "events"):
            op.execute(f"CREATE TABLE {name}_rest PARTITION OF {name} DEFAULT")
    op.execute(
        f"INSERT INTO chunks SELECT run, stream, first_step, received / {DAY}, last_step, first_time, last_time, "
        "rows, columns, schema, received, data FROM chunks_before"
    )
    op.execute(
        f"INSERT INTO events SELECT old.run, stream, number, heard / {DAY}, name, step, time, data "
        "FROM events_before AS old JOIN streams ON streams.run = old.run AND streams.id = old.stream"
    )


def _blocks_of_segments(bind: sa.Connection) -> None:
    """Converts segments to blocks, the only format of the older schema."""
    wanted = ("run", "stream", "first_step", "day", "last_step", "rows", "schema", "steps", "times")
    for row in bind.execute(sa.text(f"SELECT {', '.join(wanted)} FROM segments")).all():
        here = {name: row._mapping[name] for name in ("run", "stream", "first_step")}
        body = bind.execute(
            sa.text("SELECT body FROM schemas WHERE run = :run AND stream = :stream AND id = :id"),
            {"run": row.run, "stream": row.stream, "id": row.schema},
        ).scalar()
        if body is None:  # its stream is gone
            continue
        schema = msgspec.msgpack.decode(body, type=frames.Schema)
        values = np.full((schema.width, row.rows), block.ABSENT, np.float32)
        stored = (
            "SELECT part, head, data FROM columns WHERE run = :run AND stream = :stream AND first_step = :first_step"
        )
        for part, head, data in bind.execute(sa.text(stored), here):
            for which, header in column_codec.read_head(bytes(head), range(column_codec.COLUMNS_PER_PART)).items():
                place = part * column_codec.COLUMNS_PER_PART + which
                values[place] = column_codec.unpack(header.few or bytes(data)[header.data], row.rows)
        steps, times = (integer_codec.unpack_integers(bytes(packed), row.rows) for packed in (row.steps, row.times))
        chunk = block.pack(block.View(schema, steps, times, values))
        bind.execute(
            sa.text(
                "INSERT INTO chunks (run, stream, first_step, last_step, first_time, last_time, rows, "
                "columns, schema, received, data) VALUES (:run, :stream, :first_step, :last_step, "
                ":first_time, :last_time, :rows, :columns, :schema, :received, :data)"
            ),
            {
                **here,
                "last_step": row.last_step,
                "first_time": int(times[0]),
                "last_time": int(times[-1]),
                "rows": row.rows,
                "columns": schema.width,
                "schema": row.schema,
                "received": row.day * DAY,
                "data": chunk.data,
            },
        )
