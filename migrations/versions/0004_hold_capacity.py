"""Know the events of capacity that is held for a tree; no table of intervals depends on them.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
breaks_older = True  # nothing before was released

SQL = Path(__file__).parents[1] / "sql" / revision


def upgrade() -> None:
    function = (SQL / "project_event.sql").read_text(encoding="utf-8")
    op.get_bind().exec_driver_sql(function)
