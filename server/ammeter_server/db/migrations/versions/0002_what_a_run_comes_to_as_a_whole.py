"""What a run comes to as a whole"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

GOING_BACK_LOSES = "how runs stand against their baselines and ranks against each other, until they are judged again"


def upgrade() -> None:
    op.add_column("runs", sa.Column("whole", sa.Text(), nullable=False, server_default="{}"))
    op.add_column("runs", sa.Column("states", sa.LargeBinary(), nullable=False, server_default=sa.text("''")))


def downgrade() -> None:
    op.drop_column("runs", "states")
    op.drop_column("runs", "whole")
