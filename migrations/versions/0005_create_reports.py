"""Views of the reports that operators ask for, and the indexes by time that they need.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"
VIEWS = (
    "v_decision", "v_loss", "v_preemption", "v_victim", "v_pending", "v_passed_over", "v_reserved", "v_room",
    "v_room_taken",
)  # fmt: skip


def upgrade() -> None:
    create_indexes()
    for name in (*(f"0005/{view}" for view in VIEWS), "0005/comments", "0004/grants"):
        op.get_bind().exec_driver_sql((SQL / f"{name}.sql").read_text(encoding="utf-8"))


def create_indexes() -> None:
    at = sa.text("to_timestamp(at_us / 1e6::double precision)")
    until = sa.text(
        "coalesce(to_timestamp(to_at_us / 1e6::double precision), 'infinity'::timestamptz)"
    )
    since = sa.text("to_timestamp(from_at_us / 1e6::double precision)")
    told = (
        "'GangAdmitted', 'GangExtended', 'GangRefused', 'RootInvalid', 'MemberLost', 'RoomMeasured'"
    )
    pending = "'observed', 'waiting', 'refused', 'preempting', 'invalid'"
    op.create_index(
        "event_told_idx", "event", ["type", at], schema="gx", postgresql_where=sa.text(f"type IN ({told})")
    )  # fmt: skip
    op.create_index(
        "root_state_pending_idx", "root_state", [until, since], schema="gx",
        postgresql_where=sa.text(f"state IN ({pending})"),
    )  # fmt: skip
    op.create_index(
        "placement_reserved_idx", "placement", [until, since], schema="gx",
        postgresql_where=sa.text("kind = 'reserved'"),
    )  # fmt: skip
