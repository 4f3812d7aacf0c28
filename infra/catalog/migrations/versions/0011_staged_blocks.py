"""Blocks of a flush that works page by page, until a manifest names them."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "record_staged",
        sa.Column("block_id", sa.String(), nullable=False),
        sa.Column("manifest", _BIG, nullable=False),
        sa.Column("oldest_us", _BIG, nullable=True),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("block_id"),
    )
