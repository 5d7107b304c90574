"""Room of lost members that is kept for their replacements, among the intervals.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"
FUNCTIONS = ("kept_longest", "project_filled", "project_kept", "project_fact")


def upgrade() -> None:
    op.drop_constraint("placement_kind_check", "placement", schema="gx")
    op.create_check_constraint(
        "placement_kind_check", "placement", "kind IN ('reserved', 'bound', 'kept')", schema="gx"
    )
    for file in (*(f"0009/{name}" for name in FUNCTIONS), "0004/grants"):
        op.get_bind().exec_driver_sql((SQL / f"{file}.sql").read_text(encoding="utf-8"))
    op.execute(
        "COMMENT ON COLUMN gx.placement.kind IS 'reserved: room was held for the pod; bound: the pod was on the "
        "node; kept: the pod was lost and its room held for its replacement'"
    )
    op.execute(
        "DO $do$ BEGIN IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'gx_writer') THEN "
        "GRANT EXECUTE ON FUNCTION gx.mentions_of(text, json) TO gx_writer; END IF; END $do$"
    )  # the grants took what 0006 had given
