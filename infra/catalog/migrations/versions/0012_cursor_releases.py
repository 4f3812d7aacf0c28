"""How often a subscription gave messages back: what a cumulative acknowledgement is compared with."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the column."""
    op.add_column("cursor", sa.Column("releases", _BIG, nullable=False, server_default="0"))
