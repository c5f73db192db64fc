"""Incidents have a silence"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

DOWNGRADE_LOSES = "the silences of incidents"


def upgrade() -> None:
    op.add_column("incidents", sa.Column("silenced", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("incidents", "silenced")
