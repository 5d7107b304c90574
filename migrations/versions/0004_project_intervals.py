"""Tables of intervals that are projected from the log: who held or had which node, and how roots stood.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql" / revision
FUNCTIONS = (
    "who_evicts", "preempting_text", "project_end", "project_reserved", "project_bound", "project_preemption",
    "project_root", "project_fact", "project", "forget_projection",
)  # fmt: skip


def upgrade() -> None:
    create_placement()
    create_root_state()
    create_preemption()
    create_projection()
    for name in (*FUNCTIONS, "comments", "grants"):
        op.get_bind().exec_driver_sql((SQL / f"{name}.sql").read_text(encoding="utf-8"))


def create_placement() -> None:
    op.create_table(
        "placement",
        sa.Column("pod_uid", sa.Text, nullable=False),
        sa.Column("pod", sa.Text, nullable=False),
        sa.Column("root_uid", sa.Text, nullable=False),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("leaf", sa.Text, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("priority", sa.BigInteger, nullable=True),
        sa.Column("extra", sa.Boolean, nullable=True),
        sa.Column("resources", JSONB, nullable=True),
        sa.Column("from_position", sa.BigInteger, nullable=False),
        sa.Column("from_at_us", sa.BigInteger, nullable=False),
        sa.Column("to_position", sa.BigInteger, nullable=True),
        sa.Column("to_at_us", sa.BigInteger, nullable=True),
        sa.Column("end_type", sa.Text, nullable=True),
        sa.Column("end_why", sa.Text, nullable=True),
        sa.Column("by_root", sa.Text, nullable=True),
        sa.Column("by_position", sa.BigInteger, nullable=True),
        sa.PrimaryKeyConstraint("pod_uid", "from_position", name="placement_pkey"),
        sa.CheckConstraint("kind IN ('reserved', 'bound')", name="placement_kind_check"),
        schema="gx",
        postgresql_with={"fillfactor": "80"},
    )
    until = sa.text("coalesce(to_position, 9223372036854775807)")
    op.create_index("placement_node_idx", "placement", ["node", until], schema="gx")
    op.create_index("placement_pod_idx", "placement", ["pod", "from_position"], schema="gx")
    op.create_index("placement_root_idx", "placement", ["root", "from_position"], schema="gx")
    op.create_index(
        "placement_open_idx", "placement", ["root_uid"], schema="gx",
        postgresql_where=sa.text("to_position IS NULL"),
    )  # fmt: skip


def create_root_state() -> None:
    op.create_table(
        "root_state",
        sa.Column("root_uid", sa.Text, nullable=False),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("priority", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=True),
        sa.Column("reasons", ARRAY(sa.Text), nullable=False),
        sa.Column("answer_position", sa.BigInteger, nullable=True),
        sa.Column("from_position", sa.BigInteger, nullable=False),
        sa.Column("from_at_us", sa.BigInteger, nullable=False),
        sa.Column("to_position", sa.BigInteger, nullable=True),
        sa.Column("to_at_us", sa.BigInteger, nullable=True),
        sa.PrimaryKeyConstraint("root_uid", "from_position", name="root_state_pkey"),
        sa.CheckConstraint(
            "state IN ('observed', 'waiting', 'refused', 'preempting', 'invalid', 'admitted', 'satisfied', 'gone')",
            name="root_state_state_check",
        ),
        schema="gx",
        postgresql_with={"fillfactor": "80"},
    )
    op.create_index(
        "root_state_open_idx", "root_state", ["root_uid"], schema="gx", unique=True,
        postgresql_where=sa.text("to_position IS NULL"),
    )  # fmt: skip
    op.create_index("root_state_root_idx", "root_state", ["root", "from_position"], schema="gx")
    op.create_index("root_state_state_idx", "root_state", ["state", "from_position"], schema="gx")


def create_preemption() -> None:
    op.create_table(
        "preemption",
        sa.Column("position", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("preemption", sa.Text, nullable=False),
        sa.Column("root_uid", sa.Text, nullable=False),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("priority", sa.BigInteger, nullable=False),
        sa.Column("begun", ARRAY(sa.Text), nullable=False),
        sa.Column("evicted", sa.Integer, nullable=False),
        sa.Column("pending", sa.Boolean, nullable=False),
        sa.Column("outcome", sa.Text, nullable=True),
        sa.Column("ended_position", sa.BigInteger, nullable=True),
        sa.Column("ended_at_us", sa.BigInteger, nullable=True),
        sa.PrimaryKeyConstraint("position", name="preemption_pkey"),
        schema="gx",
    )
    op.create_index(
        "preemption_pending_idx", "preemption", ["root_uid"], schema="gx", unique=True,
        postgresql_where=sa.text("pending"),
    )  # fmt: skip
    op.create_index("preemption_root_idx", "preemption", ["root", "position"], schema="gx")
    op.create_table(
        "victim",
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("pod_uid", sa.Text, nullable=False),
        sa.Column("pod", sa.Text, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("unit", sa.Text, nullable=False),
        sa.Column("unit_priority", sa.BigInteger, nullable=False),
        sa.Column("fate", sa.Text, nullable=False),
        sa.Column("how", sa.Text, nullable=True),
        sa.Column("gone_position", sa.BigInteger, nullable=True),
        sa.Column("gone_at_us", sa.BigInteger, nullable=True),
        sa.PrimaryKeyConstraint("position", "pod_uid", name="victim_pkey"),
        sa.CheckConstraint("fate IN ('going', 'gone', 'spared')", name="victim_fate_check"),
        schema="gx",
    )
    op.create_index("victim_pod_uid_idx", "victim", ["pod_uid", "position"], schema="gx")
    op.create_index("victim_pod_idx", "victim", ["pod", "position"], schema="gx")


def create_projection() -> None:
    op.create_table(
        "projection",
        sa.Column("id", sa.SmallInteger, autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column(
            "projected_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("id", name="projection_pkey"),
        sa.CheckConstraint("id = 1", name="projection_id_check"),
        schema="gx",
    )  # fmt: skip
    op.execute("INSERT INTO gx.projection (id, position, at_us) VALUES (1, 0, 0)")
