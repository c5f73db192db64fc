"""Streams have rows that wait for their verdicts"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

DOWNGRADE_LOSES = "verdicts on the last seconds of streams, if a busy collector was killed before it judged them"


def upgrade() -> None:
    op.add_column("streams", sa.Column("postponed_from", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("streams", "postponed_from")
