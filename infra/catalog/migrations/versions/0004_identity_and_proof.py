"""The catalog's identity, digests of segments, and whose decision each deletion intent carries out."""

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Give the catalog an id of its own; old segments have no digest, and old intents name no actor."""
    op.add_column("catalog", sa.Column("catalog_id", sa.String(), nullable=False, server_default=sa.text("''")))
    op.execute(sa.text("UPDATE catalog SET catalog_id = :id").bindparams(id=str(uuid.uuid4())))
    op.create_table(
        "bucket_marker",
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("bucket", sa.String(), nullable=False),
        sa.Column("marked_us", _BIG, nullable=False),
        sa.PrimaryKeyConstraint("role", "bucket"),
    )
    op.add_column("segment", sa.Column("sha256", sa.String(), nullable=True))
    op.add_column("pending_deletion", sa.Column("actor", sa.String(), nullable=False, server_default=sa.text("''")))
    op.add_column("pending_deletion", sa.Column("reason", sa.Text(), nullable=False, server_default=sa.text("''")))
    op.add_column("pending_deletion", sa.Column("openings", _BIG, nullable=False, server_default="0"))
    op.add_column("pending_deletion", sa.Column("trace_id", sa.String(), nullable=True))
    op.add_column("run", sa.Column("paused_us", _BIG, nullable=True))
