"""Bundles of topics, and the fence of each."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Give catalogs that exist 64 bundles, of which nobody has acquired any."""
    op.add_column("catalog", sa.Column("bundles", sa.Integer(), nullable=False, server_default="64"))
    op.create_table(
        "bundle_fence",
        sa.Column("bundle", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("counter", _BIG, nullable=False),
        sa.Column("worker_id", sa.String(), nullable=False),
        sa.Column("raised_us", _BIG, nullable=False),
        sa.PrimaryKeyConstraint("bundle"),
    )
