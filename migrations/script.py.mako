"""${message}

Revision ID: ${up_revision}
Revises: ${down_revision | comma,n}
"""

from alembic import context, op
${imports if imports else ""}

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None

# The oldest revision whose code still works with this schema. Raise it only in a contract step.
OLDEST_CODE = ${repr(down_revision or up_revision)}


def upgrade() -> None:
    schema = context.config.attributes["schema"]
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    schema = context.config.attributes["schema"]
    ${downgrades if downgrades else "pass"}
