"""Tell whose room a preemption takes where nobody is evicted, and read version 2 of its facts.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    for name in ("preempting_text", "project_fact"):
        op.get_bind().exec_driver_sql((SQL / f"0007/{name}.sql").read_text(encoding="utf-8"))
