"""Say what the causes of a loss are: those of today, which tell what a kubelet and a node's end did.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "COMMENT ON COLUMN gx.v_loss.cause IS 'preempted: DisruptionTarget says by a scheduler; evicted: by the "
        "Eviction API, a taint or the kubelet; node-lost: its node is gone; refused-by-kubelet: the kubelet did not "
        "let it in; ended: it ended by itself; deleted: by anybody; gone: nobody could tell any more'"
    )
