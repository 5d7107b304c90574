"""Tell which admissions took room without reading an admission's JSON again for each place and member.

Revision ID: 0010
Revises: 0009
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql" / revision


def upgrade() -> None:
    op.get_bind().exec_driver_sql((SQL / "v_room_taken.sql").read_text(encoding="utf-8"))
