"""Know the event of groups with other minima; no table of intervals depends on them.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None
breaks_older = True  # nothing before was released

SQL = Path(__file__).parents[1] / "sql" / revision


def upgrade() -> None:
    function = (SQL / "project_event.sql").read_text(encoding="utf-8")
    op.get_bind().exec_driver_sql(function)
