"""What is installed in a database: stream tables, queues and registers, each with its schemas."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version

VERSION = version("headwater")
"""The version of every system, and of Headwater. Scripts say ``@version@``."""
EARLIER_VERSIONS: tuple[str, ...] = ()
"""Versions that were released before: PostgreSQL is to know that what they have installed can be brought up to date."""
MADE_BY = "Headwater: "
"""How the comments of extensions of ours begin, by which PostgreSQL's files for them are told from those of others."""

WITHOUT_EVENT_TRIGGERS = (
    "event triggers of pgtrickle are not installed, since role {role} is no superuser: DROP TABLE on a stream table "
    "or a source, and ALTER TABLE on a source, are noticed at the next refresh only; columns that stream tables "
    "use cannot be dropped or retyped, and must not be renamed"
)

WITHOUT_DROP_GUARD = (
    "the event trigger of registers is not installed, since role {role} is no superuser: DROP TABLE on a table of a "
    "register is not refused; register_drop() removes what is left of it"
)


@dataclass(frozen=True, slots=True)
class System:
    """What is installed together: one schema, known to users as one extension."""

    title: str
    """What its users call it, in the plural: "stream tables"."""
    schema: str
    extension: str
    """The name in CREATE EXTENSION, also of the real extension whose place this takes."""
    versions: str
    """The table, in the schema, of the scripts that have run."""
    advisory_lock: int
    """Held by the one server that installs."""
    internal: str = ""
    """The schema of the functions that are not for users, where that is another one."""
    functions_needed: tuple[str, ...] = ()
    """Functions of PostgreSQL that the role must be allowed to execute."""
    missing: str | None = None
    """A query for what the scripts could not do for want of rights: one row, an array of warnings."""
    without_superuser: str | None = None
    """The warning where the superuser's scripts could not run, with the role's name to be put in."""
    beside: tuple[str, ...] = ()
    """Further schemas that the scripts make, dropped with it."""
    exclusive: tuple[str, ...] = ()
    """Those of the schemas in which everything belongs to the server."""
    movable: bool = False
    """Whether the schema may be another one; `schema` is then the default."""
    generated: tuple[str, ...] = ()
    """Functions that the scripts make and its use makes again, of another text."""
    in_use: str | None = None
    """A query, for a movable system: whether it holds anything that would be lost by making it elsewhere instead."""
    others: str | None = None
    """A query, for a movable system: what else is in its schema, and must not be dropped with it; one row, an array."""


STREAM_TABLES = System(
    title="stream tables",
    schema="pgtrickle",
    extension="pg_trickle",
    versions="pgt_schema_version",
    advisory_lock=0x7067_7472_6963_6B6C,  # "pgtrickl"
    functions_needed=("pg_control_system()",),
    without_superuser=WITHOUT_EVENT_TRIGGERS,
    beside=("pgtrickle_changes", "pgtrickle_roles", "pgtrickle_staging"),
    exclusive=("pgtrickle", "pgtrickle_changes"),
)

QUEUES = System(
    title="queues",
    schema="pgque",
    extension="pgque",
    versions="schema_version",
    advisory_lock=0x7067_7175_6575_6573,  # "pgqueues"
    functions_needed=("pg_control_system()",),
    missing="SELECT pgque._missing_roles()",
    generated=(
        *("pgque.send", "pgque.insert_event", "pgque.insert_event_bulk"),
        *("pgque.receive", "pgque.get_batch_events"),
    ),
)

REGISTERS = System(
    title="registers",
    schema="accum",
    extension="pg_accumulator",
    versions="_schema_version",
    without_superuser=WITHOUT_DROP_GUARD,
    advisory_lock=0x7067_6163_6375_6D75,  # "pgaccumu"
    movable=True,
    internal="accum_internal",
    beside=("accum_internal", "accum_roles"),
    in_use="SELECT EXISTS (SELECT FROM @extschema@._registers) OR accum_internal._others() <> '{}'",
    others="SELECT accum_internal._others()",
)

SYSTEMS = (STREAM_TABLES, QUEUES, REGISTERS)
"""Every system, in the order of their installation."""
