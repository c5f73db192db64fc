"""Indexes of the ends of runs and incidents"""

from alembic import op

revision = "0005"
down_revision = "0004"

DOWNGRADE_LOSES = "nothing"


def upgrade() -> None:
    op.create_index("ix_runs_ended", "runs", ["ended"], unique=False)
    op.create_index("ix_incidents_closed", "incidents", ["closed"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_incidents_closed", table_name="incidents")
    op.drop_index("ix_runs_ended", table_name="runs")
