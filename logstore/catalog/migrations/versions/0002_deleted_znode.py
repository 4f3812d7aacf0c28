"""Tables of what applies delete in a Pulsar cluster, and of what they decide in the own store."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "deleted_znode",
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("ledger_id", _BIG, nullable=False),
        sa.Column("path", sa.String, nullable=False),
        sa.Column("version", _BIG, nullable=False),
        sa.Column("czxid", _BIG, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("journaled_us", _BIG, nullable=False),
        sa.Column("deleted_us", _BIG),
        sa.Column("restoration", sa.String),
        sa.Column("stored_data", sa.String),
        sa.PrimaryKeyConstraint("run_id", "ledger_id"),
    )
    op.create_table(
        "cluster_removal",
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("number", _BIG, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("bucket", sa.String, nullable=False),
        sa.Column("parts", sa.JSON, nullable=False),
        sa.Column("journaled_us", _BIG, nullable=False),
        sa.Column("removed_us", _BIG),
        sa.PrimaryKeyConstraint("run_id", "number"),
    )
    op.create_table(
        "finding_fate",
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("page", _BIG, nullable=False),
        sa.Column("number", _BIG, nullable=False),
        sa.Column("fate", sa.String),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("objects", _BIG, nullable=False),
        sa.Column("size_bytes", _BIG, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "page", "number"),
    )
