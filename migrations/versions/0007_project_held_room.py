"""Room of lost members that is kept for their replacements, among the intervals; whose room a preemption takes.

The projection reads the newer versions of facts, and passes over what was found of kube-apiserver and kube-scheduler.

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
FUNCTIONS = (
    "preempting_text",
    "kept_longest",
    "project_filled",
    "project_kept",
    "project_fact",
)


def upgrade() -> None:
    op.drop_constraint("placement_kind_check", "placement", schema="gx")
    op.create_check_constraint(
        "placement_kind_check", "placement", "kind IN ('reserved', 'bound', 'kept')", schema="gx"
    )
    for file in (*(f"0007/{name}" for name in FUNCTIONS), "0004/grants"):
        op.get_bind().exec_driver_sql((SQL / f"{file}.sql").read_text(encoding="utf-8"))
    op.execute(
        "COMMENT ON COLUMN gx.placement.kind IS 'reserved: room was held for the pod; bound: the pod was on the "
        "node; kept: the pod was lost and its room held for its replacement'"
    )
    op.execute(
        "DO $do$ BEGIN IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'gx_writer') THEN "
        "GRANT EXECUTE ON FUNCTION gx.mentions_of(text, json) TO gx_writer; END IF; END $do$"
    )  # the grants took what 0006 had given
