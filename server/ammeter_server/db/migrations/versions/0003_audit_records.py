"""Audit records"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

DOWNGRADE_LOSES = "all audit records"


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("at", "id"),
    )
    op.create_index("ix_runs_project_started", "runs", ["project", "started"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_runs_project_started", table_name="runs")
    op.drop_table("audit")
