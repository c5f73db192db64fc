"""Runs have an external id"""

import sqlalchemy as sa
from alembic import op

from ammeter_server.db import citus

revision = "0008"
down_revision = "0007"

DOWNGRADE_LOSES = "the ids that processes send for successors, whose stored id is another"


def upgrade() -> None:
    op.add_column("runs", sa.Column("external_id", sa.Text(), nullable=False, server_default=""))
    op.execute("UPDATE runs SET external_id = id")
    op.add_column("deleted", sa.Column("project", sa.Text(), nullable=False, server_default=""))
    unique = not citus.is_distributed(op.get_bind(), "runs")
    op.create_index("ix_runs_external_id_project", "runs", ["external_id", "project"], unique=unique)


def downgrade() -> None:
    op.drop_column("deleted", "project")
    op.drop_index("ix_runs_external_id_project", table_name="runs")
    op.drop_column("runs", "external_id")
