"""Runs are deleted"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

GOING_BACK_LOSES = "which runs were deleted: their shippers may bring them back"


def upgrade() -> None:
    op.create_table(
        "deleted",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run"),
    )


def downgrade() -> None:
    op.drop_table("deleted")
