"""Add the position up to which the receiver of notifications has been notified.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    op.create_table(
        "notification_cursor",
        sa.Column("id", sa.SmallInteger, autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("waited_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="notification_cursor_pkey"),
        sa.CheckConstraint("id = 1", name="notification_cursor_id_check"),
        schema="gx",
        postgresql_with={"fillfactor": "50"},
    )
    for name in ("0002/note_notified", "0001/grants"):
        text = (SQL / f"{name}.sql").read_text(encoding="utf-8")
        op.get_bind().exec_driver_sql(text)
