"""Tables and columns get standard names; their content stays"""

from alembic import op

revision = "0009"
down_revision = "0008"

DOWNGRADE_LOSES = "nothing"

TABLES = (("keeping", "compaction_leases"), ("deleted", "deleted_runs"))
"""(name before, name after). Names of keys and constraints stay: Citus cannot change them."""

COLUMNS = (
    ("streams", "heard", "last_seen"),
    ("runs", "folded", "fleet_progress"),
    ("runs", "whole", "evaluation"),
    ("findings", "found", "updated"),
    ("audit", "who", "actor"),
)
"""(table, name before, name after)."""


def upgrade() -> None:
    op.drop_index("ix_streams_heard", table_name="streams")
    for before, after in TABLES:
        op.rename_table(before, after)
    for table, before, after in COLUMNS:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {before} TO {after}")
    op.create_index("ix_streams_last_seen", "streams", ["last_seen"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_streams_last_seen", table_name="streams")
    for table, before, after in COLUMNS:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {after} TO {before}")
    for before, after in TABLES:
        op.rename_table(after, before)
    op.create_index("ix_streams_heard", "streams", ["heard"], unique=False)
