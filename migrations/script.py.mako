"""${message.capitalize()}${"" if message.endswith(".") else "."}

Revision ID: ${up_revision}
Revises: ${down_revision | comma,n}
"""

from __future__ import annotations

from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision).replace("'", '"')}
down_revision = ${repr(down_revision).replace("'", '"')}
branch_labels = ${repr(branch_labels).replace("'", '"')}
depends_on = ${repr(depends_on).replace("'", '"')}
breaks_older = False  # True: the version before does not run on this schema


def upgrade() -> None:
    ${upgrades if upgrades else 'op.execute("SELECT 1")'}
