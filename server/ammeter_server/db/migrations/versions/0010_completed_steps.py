"""Streams have the newest completed step"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

DOWNGRADE_LOSES = "the steps that processes completed without writing their rows"


def upgrade() -> None:
    op.add_column("streams", sa.Column("completed_step", sa.BigInteger(), nullable=True))
    op.add_column("streams", sa.Column("completed_time", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("streams", "completed_time")
    op.drop_column("streams", "completed_step")
