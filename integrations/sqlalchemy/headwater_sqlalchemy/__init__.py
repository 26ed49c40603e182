"""Stream tables in Alembic's migrations: operations, and what autogenerate has to leave alone.

Importing it registers `op.create_stream_table`, `op.alter_stream_table` and `op.drop_stream_table`.
"""

from headwater_sqlalchemy.autogenerate import STREAM_TABLE, include_name, include_object
from headwater_sqlalchemy.operations import AlterStreamTableOp, CreateStreamTableOp, DropStreamTableOp

__all__ = [
    "STREAM_TABLE",
    "AlterStreamTableOp",
    "CreateStreamTableOp",
    "DropStreamTableOp",
    "include_name",
    "include_object",
]
