"""Let whoever takes the lease name an epoch that the new one must exceed.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    op.execute("DROP FUNCTION gx.take(text, text, integer)")
    for file in (
        "0002/take.sql",
        "0001/grants.sql",
    ):  # the grants are for whatever functions there are
        op.get_bind().exec_driver_sql((SQL / file).read_text(encoding="utf-8"))
