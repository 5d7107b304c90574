"""Hide the id of the lease from readers, and let snapshots carry an HMAC.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql" / revision


def upgrade() -> None:
    op.add_column("snapshot", sa.Column("mac", sa.LargeBinary, nullable=True), schema="gx")
    op.get_bind().exec_driver_sql((SQL / "grants.sql").read_text(encoding="utf-8"))
