"""Project a gang in time that grows with its members, not with their square.

What goes on is found by root and pod together, and the kept room of a root by an index of its own; a bound member is
not looked for among all that ever was reserved; an admission is parsed once, not for each of its assignments. Victims
of a preemption that was completed are spared, as the fold has it, when its root is gone and their units were not begun.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql" / revision


def upgrade() -> None:
    # Whoever projects holds this row: nobody is half way between reading placements and writing them, which would be
    # a deadlock with the two locks below.
    op.execute("SELECT FROM gx.projection WHERE id = 1 FOR UPDATE")
    op.create_index(
        "placement_open_pod_idx", "placement", ["root_uid", "pod_uid"], schema="gx",
        postgresql_where=sa.text("to_position IS NULL"),
    )  # fmt: skip
    c = 'COLLATE "C"'  # the order of gx.kept_longest, which takes the first
    op.create_index(
        "placement_kept_idx", "placement",
        ["root_uid", "leaf", "from_at_us", sa.text(f"pod {c}"), sa.text(f"pod_uid {c}")], schema="gx",
        postgresql_where=sa.text("to_position IS NULL AND kind = 'kept'"),
    )  # fmt: skip
    # last: readers go on while the indexes are built, and wait only from here to the end
    op.drop_index("placement_open_idx", "placement", schema="gx")
    for name in ("project_end", "project_reserved", "project_bound", "project_preemption"):
        op.get_bind().exec_driver_sql((SQL / f"{name}.sql").read_text(encoding="utf-8"))
