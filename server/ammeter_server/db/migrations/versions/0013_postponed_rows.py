"""Streams have rows that wait for their verdicts"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

DOWNGRADE_LOSES = "verdicts on the last seconds of streams, if a busy collector was killed before it judged them"

INDEX = "ix_streams_postponed_from"
POSTPONED = sa.text("postponed_from IS NOT NULL")


def upgrade() -> None:
    op.add_column("streams", sa.Column("postponed_from", sa.BigInteger(), nullable=True))
    op.create_index(INDEX, "streams", ["postponed_from"], sqlite_where=POSTPONED, postgresql_where=POSTPONED)


def downgrade() -> None:
    op.drop_index(INDEX, table_name="streams")
    op.drop_column("streams", "postponed_from")
