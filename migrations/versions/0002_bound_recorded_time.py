"""Bound the recorded time by the clock of the database, and know the event of a clock that stepped.

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

SQL = Path(__file__).parents[1] / "sql" / revision
FUNCTIONS = ("expect_head", "append", "project_event")  # replaced functions keep their rights


def upgrade() -> None:
    for name in FUNCTIONS:
        op.get_bind().exec_driver_sql((SQL / f"{name}.sql").read_text(encoding="utf-8"))
