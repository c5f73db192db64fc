"""Runs are pinned as baselines"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

DOWNGRADE_LOSES = "which runs are pinned as baselines"


def upgrade() -> None:
    op.create_table(
        "baselines",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("pinned", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("project", "name"),
    )


def downgrade() -> None:
    op.drop_table("baselines")
