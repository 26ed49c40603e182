"""The settings `pg_trickle.*`: their types, defaults and ranges, for the wire and for PostgreSQL.

PostgreSQL takes any value for a name with a dot that no extension has claimed. Statements that come through the server
are checked before they are run (`server.protocol.statements.setting_syntax`). A value that came another way
(`set_config`, PGOPTIONS, past the server) is checked where it is used: `pgtrickle._setting` takes the default instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

PREFIX = "pg_trickle."

_PATTERNS = {
    "bool": "on|off|true|false|yes|no|1|0",
    "integer": " *[+-]?[0-9]{1,18} *",
    "real": " *[+-]?([0-9]{1,18}([.][0-9]*)?|[.][0-9]+)(e[+-]?[0-9]{1,2})? *",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a value cannot be had: an error as PostgreSQL reports one."""

    sqlstate: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `name` without the prefix, `default` as SHOW gives it, `least` and `most` inclusive."""

    name: str
    kind: Literal["bool", "integer", "real", "enum", "string"]
    default: str
    description: str
    least: float | None = None
    most: float | None = None
    values: tuple[str, ...] = ()
    unit: str = ""
    fixed: str = ""
    """Why it cannot be anything but its default; empty where it can."""

    @property
    def full_name(self) -> str:
        return PREFIX + self.name

    @property
    def pattern(self) -> str:
        """What a whole value looks like in lower case, to Python and to PostgreSQL alike; empty if there is no rule."""
        return _PATTERNS.get(self.kind, "|".join(self.values))

    def fault(self, value: str) -> Fault | None:
        """What is wrong with a value, None if nothing is.

        >>> ENABLED = next(setting for setting in SETTINGS if setting.name == "enabled")
        >>> ENABLED.fault("off"), ENABLED.fault("maybe").message
        (None, 'parameter "pg_trickle.enabled" requires a Boolean value')
        """
        if self.pattern and re.fullmatch(self.pattern, value.lower()) is None:
            if self.kind == "bool":
                return Fault("22023", f'parameter "{self.full_name}" requires a Boolean value')
            available = f"Available values: {', '.join(self.values)}." if self.values else ""
            return Fault("22023", f'invalid value for parameter "{self.full_name}": "{value}"', available)
        if self.least is not None and self.most is not None and not self.least <= float(value) <= self.most:
            least, most = f"{self.least:.10g}", f"{self.most:.20g}"
            message = f'{value.strip()} is outside the valid range for parameter "{self.full_name}" ({least} .. {most})'
            return Fault("22023", message)
        if self.fixed and self._canonical(value) != self.default:
            message = f'parameter "{self.full_name}" cannot be set to "{value}"'
            return Fault("0A000", message, self.fixed)
        return None

    def _canonical(self, value: str) -> str:
        value = value.strip().lower()
        if self.kind != "bool":
            return value
        return "on" if value in ("on", "true", "yes", "1") else "off"


_SECONDS = 7 * 86400
_LARGEST = 2**31 - 1

SETTINGS = (
    Setting("enabled", "bool", "on", "Whether the scheduler refreshes stream tables by schedule."),
    Setting(
        "event_driven_wake", "bool", "on", "Whether a commit through the server brings about cheap refreshes at once."
    ),
    Setting(
        "scheduler_interval_ms",
        "integer",
        "1000",
        "Time between the scheduler's looks for changes that did not come through the server.",
        100,
        60000,
        unit="ms",
    ),
    Setting("min_schedule_seconds", "integer", "1", "The shortest schedule that is accepted.", 1, 86400, unit="s"),
    Setting(
        "default_schedule_seconds",
        "integer",
        "1",
        "The schedule of a calculated stream table that no other one reads.",
        1,
        86400,
        unit="s",
    ),
    Setting(
        "max_consecutive_errors",
        "integer",
        "3",
        "A stream table is suspended after so many failures in a row.",
        1,
        100,
    ),
    Setting(
        "max_concurrent_refreshes",
        "integer",
        "4",
        "How many stream tables of the database are refreshed by schedule at once.",
        1,
        32,
    ),
    Setting(
        "parallel_refresh_mode",
        "enum",
        "on",
        "Whether several stream tables are refreshed by schedule at once.",
        values=("on", "off"),
    ),
    Setting(
        "refresh_timeout",
        "real",
        "7200",
        "Time that a refresh by schedule may take; 0 is no limit.",
        0,
        _SECONDS,
        unit="s",
    ),
    Setting(
        "refresh_engine",
        "enum",
        "auto",
        "Who computes refreshes, where the stream table does not say it.",
        values=("auto", "spark", "postgres"),
    ),
    Setting(
        "spark_min_rows",
        "integer",
        "100000",
        "Rows to be read from which on Spark is used, until it is known what both take.",
        0,
        _LARGEST,
    ),
    Setting(
        "spark_failure_policy",
        "enum",
        "retry",
        "What becomes of a refresh that Spark fails at.",
        values=("retry", "postgres", "error"),
    ),
    Setting(
        "spark_timeout", "real", "3600", "Time that Spark may take for a refresh; 0 is no limit.", 0, _SECONDS, unit="s"
    ),
    Setting(
        "spark_parallel_rows",
        "integer",
        "1000000",
        "Rows of a result of Spark from which on it is written over several connections; 0 is never.",
        0,
        _LARGEST,
    ),
    Setting(
        "differential_max_change_ratio",
        "real",
        "0.15",
        "In mode AUTO a refresh is done in full if a larger part of the rows has changed.",
        0,
        1,
    ),
    Setting("merge_planner_hints", "bool", "on", "Whether the planner is kept from merge joins where changes are few."),
    Setting(
        "merge_work_mem_mb",
        "integer",
        "64",
        "work_mem for the statement that applies 10 000 changes and more, where the session has less.",
        8,
        4096,
        unit="MB",
    ),
    Setting(
        "merge_strategy",
        "enum",
        "auto",
        "How changes are applied.",
        values=("auto", "merge", "delete_insert"),
        fixed="Changes are always applied by DELETE, UPDATE and INSERT in one statement.",
    ),
    Setting(
        "use_prepared_statements",
        "bool",
        "on",
        "Whether plans of refreshes are kept.",
        fixed="The server decides which statements it keeps prepared.",
    ),
    Setting(
        "cleanup_use_truncate", "bool", "on", "Whether a change buffer is emptied by TRUNCATE where nobody is at it."
    ),
    Setting(
        "change_buffer_schema",
        "string",
        "pgtrickle_changes",
        "The schema of the change buffers.",
        fixed="The schema of the change buffers is fixed.",
    ),
    Setting(
        "user_triggers",
        "enum",
        "auto",
        "Whether triggers on stream tables fire during refreshes.",
        values=("auto", "on", "off"),
        fixed="Triggers on a stream table always fire; disable one with ALTER TABLE ... DISABLE TRIGGER.",
    ),
    Setting(
        "foreign_table_polling",
        "bool",
        "off",
        "Whether stream tables over foreign tables are maintained by comparison with a local copy.",
    ),
    Setting(
        "max_grouping_sets",
        "integer",
        "64",
        "A query whose grouping sets come to more is not maintained incrementally.",
        1,
        4096,
    ),
    Setting(
        "subscription_timeout",
        "real",
        "60",
        "Time that the evaluation of a subscription's changes may take; 0 is no limit.",
        0,
        _SECONDS,
        unit="s",
    ),
    Setting(
        "history_retention_days",
        "integer",
        "30",
        "Rows of the refresh history are removed after so many days; 0 is never.",
        0,
        36500,
        unit="d",
    ),
    Setting(
        "history_max_rows",
        "integer",
        "50000",
        "Rows of the refresh history that are kept of each stream table; 0 is all.",
        0,
        _LARGEST,
    ),
    Setting(
        "cdc_mode",
        "enum",
        "trigger",
        "How changes of tables are captured.",
        values=("trigger", "auto", "wal"),
    ),
    Setting(
        "wal_transition_timeout",
        "integer",
        "300",
        "Time within which capture must have passed from triggers to the write-ahead log.",
        1,
        3600,
        unit="s",
    ),
    Setting(
        "slot_lag_warning_threshold_mb",
        "real",
        "100",
        "Write-ahead log kept by a replication slot of a capture of which health_check() warns.",
        0,
        _LARGEST,
        unit="MB",
    ),
    Setting(
        "slot_lag_critical_threshold_mb",
        "real",
        "1024",
        "Write-ahead log kept by a replication slot of a capture at which check_cdc_health() alerts.",
        0,
        _LARGEST,
        unit="MB",
    ),
    Setting(
        "block_source_ddl",
        "bool",
        "off",
        "Whether changes of a source's columns that stream tables use are refused.",
    ),
    Setting(
        "diamond_consistency",
        "enum",
        "none",
        "Whether stream tables between one source and one reader are refreshed together.",
        values=("none", "atomic"),
    ),
    Setting(
        "allow_circular",
        "bool",
        "off",
        "Whether stream tables may read each other in a circle.",
    ),
    Setting(
        "publish_hold_seconds",
        "integer",
        "3600",
        "How long changes are kept for a publication that cannot be written to; then its contents are replaced.",
        1,
        31536000,
        unit="s",
    ),
    Setting(
        "max_fixpoint_iterations",
        "integer",
        "100",
        "Rounds after which the refresh of stream tables that read each other is given up.",
        1,
        10000,
    ),
    Setting(
        "ivm_recursive_max_depth",
        "integer",
        "100",
        "Depth of a recursion beyond which a statement fails that would have IMMEDIATE mode follow it; 0: no limit.",
        0,
        _LARGEST,
    ),
)

_BY_NAME = {setting.name: setting for setting in SETTINGS}
_OTHER_NAMES = {"adaptive_full_threshold": "differential_max_change_ratio"}
"""Names that pg_trickle's own documentation uses for a setting in passing."""


def setting_named(name: str) -> Setting | None:
    """The setting of this name, with or without the prefix, in any case.

    >>> setting_named("PG_Trickle.Enabled").default, setting_named("pg_trickle.other")
    ('on', None)
    """
    return _BY_NAME.get(name.lower().removeprefix(PREFIX))


def nearest(name: str) -> str | None:
    """The full name of the setting that was perhaps meant by this one.

    >>> nearest("pg_trickle.enable"), nearest("pg_trickle.qqq")
    ('pg_trickle.enabled', None)
    >>> nearest("pg_trickle.adaptive_full_threshold")
    'pg_trickle.differential_max_change_ratio'
    """
    meant = name.lower().removeprefix(PREFIX)
    found = [_OTHER_NAMES[meant]] if meant in _OTHER_NAMES else get_close_matches(meant, _BY_NAME, n=1)
    return PREFIX + found[0] if found else None
