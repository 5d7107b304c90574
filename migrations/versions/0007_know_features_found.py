"""Let the projection pass over what was found of kube-apiserver and kube-scheduler.

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

SQL = Path(__file__).parents[1] / "sql" / revision


def upgrade() -> None:
    text = (SQL / "project_fact.sql").read_text(encoding="utf-8")
    op.get_bind().exec_driver_sql(text)
