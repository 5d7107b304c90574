"""Tell whose room a preemption takes where nobody is evicted, and read version 2 of its facts.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    for name in ("preempting_text", "project_fact"):
        op.get_bind().exec_driver_sql((SQL / f"0008/{name}.sql").read_text(encoding="utf-8"))
