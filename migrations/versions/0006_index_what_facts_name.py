"""Index the nodes, the victims and the plans that facts name.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"
AT_ONCE = 10_000  # facts


def upgrade() -> None:
    op.create_table(
        "mention",
        sa.Column("what", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("position", sa.BigInteger, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("what", "name", "position", name="mention_pkey"),
        schema="gx",
    )
    op.create_table(
        "noted",
        sa.Column("id", sa.SmallInteger, autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="noted_pkey"),
        sa.CheckConstraint("id = 1", name="noted_id_check"),
        schema="gx",
        postgresql_with={"fillfactor": "50"},
    )
    op.execute("INSERT INTO gx.noted (id, position) VALUES (1, 0)")
    for name in ("0006/mentions_of", "0006/note_mentions", "0004/grants"):
        op.get_bind().exec_driver_sql((SQL / f"{name}.sql").read_text(encoding="utf-8"))
    op.execute(
        "DO $do$ BEGIN IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'gx_writer') THEN "
        "GRANT EXECUTE ON FUNCTION gx.mentions_of(text, json) TO gx_writer; END IF; END $do$"
    )  # questions call it for what is not indexed yet; it only computes
    while op.get_bind().scalar(sa.text(f"SELECT gx.note_mentions({AT_ONCE})")):
        pass
