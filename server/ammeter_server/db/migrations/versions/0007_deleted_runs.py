"""Deleted runs are recorded"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

DOWNGRADE_LOSES = "the record of deleted runs; their shippers may create them again"


def upgrade() -> None:
    op.create_table(
        "deleted",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run"),
    )


def downgrade() -> None:
    op.drop_table("deleted")
