"""Runs store their evaluation: comparisons of their ranks and with the baseline"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

DOWNGRADE_LOSES = "comparisons of ranks and with baselines; the next judgement computes those of running runs again"


def upgrade() -> None:
    op.add_column("runs", sa.Column("whole", sa.Text(), nullable=False, server_default="{}"))
    op.add_column("runs", sa.Column("states", sa.LargeBinary(), nullable=False, server_default=sa.text("''")))


def downgrade() -> None:
    op.drop_column("runs", "states")
    op.drop_column("runs", "whole")
