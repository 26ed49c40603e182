"""Every metric that a server gives: name, type, labels, meaning."""

from __future__ import annotations

from server.metrics.families import Described

_TABLE = ("database", "stream_table")
_PUBLICATION = (*_TABLE, "location")

_ALL = [
    ("headwater_info", "gauge", ("version",), "1; the version of the server."),
    ("headwater_up", "gauge", (), "1 where the PostgreSQL behind the server has answered when it was last asked."),
    ("headwater_ready", "gauge", (), "1 where /readyz says so."),
    ("headwater_uptime_seconds", "gauge", (), "Since the server has been started."),
    ("headwater_embedded_postgres_up", "gauge", (), "1 while the embedded PostgreSQL runs; not there with --postgres."),
    ("headwater_left_out", "gauge", ("kind",), "Objects without series of their own: above --metrics-objects."),
    ("headwater_connections", "gauge", ("state",), "Clients, by state: starting, active, idle, idle_in_transaction."),
    ("headwater_connections_limit", "gauge", (), "--max-connections."),
    ("headwater_connections_opened", "counter", (), "Connections that clients have opened."),
    ("headwater_statements", "counter", (), "Statements, and batches of the extended protocol, that were answered."),
    ("headwater_received_bytes", "counter", ("source",), "Bytes that the relay has got from clients, and postgres."),
    ("headwater_errors", "counter", ("sqlstate_class",), "Errors that clients have got."),
    (
        "headwater_statement_duration_seconds",
        "histogram",
        (),
        "From what a client sends until nothing more is owed to it. What it sends meanwhile belongs to that.",
    ),
    (
        "headwater_relay_added_seconds",
        "histogram",
        (),
        "What the relay adds to the time to the first byte of an answer; of one statement in 16 of a session.",
    ),
    ("headwater_database_up", "gauge", ("database",), "1 where it has answered when it was last asked; else stale."),
    ("headwater_database_age_seconds", "gauge", ("database",), "How old is what is told of the database."),
    ("headwater_database_asking_seconds", "gauge", ("database",), "What asking it took."),
    ("headwater_database_unanswered", "gauge", ("database",), "Questions it had no answer to, as for a time limit."),
    ("headwater_database_size_bytes", "gauge", ("database",), "Size of the database."),
    ("headwater_database_sessions", "gauge", ("database",), "Sessions of PostgreSQL in it, with the engine's."),
    ("headwater_engine_pool_connections", "gauge", ("database", "state"), "Connections of the engine: busy, idle."),
    ("headwater_engine_pool_connections_limit", "gauge", ("database",), "How many there may be."),
    ("headwater_scheduler_running", "gauge", ("database",), "1 where a scheduler works, of this server or another."),
    ("headwater_workers_active", "gauge", ("database",), "Stream tables that are being refreshed."),
    ("headwater_workers_limit", "gauge", ("database",), "How many may be at once."),
    ("headwater_stream_tables", "gauge", ("database", "status"), "Stream tables, by status."),
    ("headwater_stream_tables_stale", "gauge", ("database",), "Those that lack a change for longer than they may."),
    ("headwater_stream_table_lag_seconds", "gauge", _TABLE, "Age of the rows where changes wait for it, else 0."),
    ("headwater_stream_table_lag_rows", "gauge", _TABLE, "Captured row images that wait for it."),
    ("headwater_stream_table_staleness_seconds", "gauge", _TABLE, "Since when the rows are known to be current."),
    ("headwater_stream_table_stale", "gauge", _TABLE, "1 where it lacks a change for longer than its schedule says."),
    ("headwater_stream_table_suspended", "gauge", _TABLE, "1 where it is suspended."),
    ("headwater_stream_table_consecutive_errors", "gauge", _TABLE, "Failures in a row."),
    (
        "headwater_stream_table_buffer_bytes",
        "gauge",
        _TABLE,
        "Change buffers that it reads, as others may, too.",
    ),
    (
        "headwater_stream_table_refreshes",
        "counter",
        (*_TABLE, "action", "status"),
        "Refreshes that this server has done.",
    ),
    ("headwater_stream_table_rows", "counter", (*_TABLE, "change"), "Rows inserted, updated, deleted by them."),
    (
        "headwater_refresh_fallbacks",
        "counter",
        ("database", "reason"),
        "Refreshes of this server that computed all rows, although the stream table is differential.",
    ),
    (
        "headwater_refresh_duration_seconds",
        "histogram",
        ("database", "action", "executor"),
        "Duration of the refreshes of this server that succeeded.",
    ),
    ("headwater_mirrors", "gauge", ("database",), "Tables that are mirrored for Spark."),
    ("headwater_spark_up", "gauge", (), "1 while Spark runs; not there before it is needed, or with --spark off."),
    ("headwater_spark_jobs_running", "gauge", (), "Jobs of this server on Spark."),
    ("headwater_spark_jobs", "counter", ("status",), "Jobs that were completed, failed, interrupted, or lost Spark."),
    ("headwater_queue_depth", "gauge", ("database", "queue"), "Events that the slowest consumer has not finished."),
    (
        "headwater_queue_age_seconds",
        "gauge",
        ("database", "queue"),
        "Age of its position, 0 without events.",
    ),
    ("headwater_queue_tick_age_seconds", "gauge", ("database", "queue"), "Since the last tick."),
    ("headwater_queue_ticks", "counter", ("database", "queue"), "Number of the last tick."),
    ("headwater_queue_dead_letters", "gauge", ("database", "queue"), "Dead letters."),
    (
        "headwater_consumer_lag_seconds",
        "gauge",
        ("database", "queue", "consumer"),
        "Age of what it has finished last.",
    ),
    ("headwater_consumer_pending_events", "gauge", ("database", "queue", "consumer"), "Events that wait for it."),
    ("headwater_register_pending_rows", "gauge", ("database", "register"), "About how many rows are to be merged."),
    ("headwater_registers", "gauge", ("database",), "Registers."),
    ("headwater_subscriptions", "gauge", ("database",), "Subscriptions; clients may share one."),
    ("headwater_subscription_clients", "gauge", ("database",), "Clients that follow them."),
    ("headwater_subscription_waiting_bytes", "gauge", ("database",), "What waits in servers for clients to read it."),
    ("headwater_subscription_lag_seconds", "gauge", ("database",), "How long the oldest of that has been waiting."),
    ("headwater_history_changes", "gauge", ("database", "relation"), "Changes that a retained history holds."),
    ("headwater_history_held_seconds", "gauge", ("database", "relation"), "How far back it reaches."),
    ("headwater_publication_lag_seconds", "gauge", _PUBLICATION, "For how long it has lacked a change, else 0."),
    ("headwater_publication_unpublished_refreshes", "gauge", _PUBLICATION, "Refreshes that are kept for it."),
    ("headwater_publication_failing", "gauge", _PUBLICATION, "1 while its last attempt has failed."),
    ("headwater_publication_commits", "counter", _PUBLICATION, "Commits of its Delta table by this server."),
    (
        "headwater_publication_rows",
        "counter",
        (*_PUBLICATION, "change"),
        "Rows written and removed by them. Contents that are replaced are written as a whole.",
    ),
    ("headwater_publication_failures", "counter", _PUBLICATION, "Attempts of this server that failed."),
]

DESCRIBED = {each[0]: Described(*each) for each in _ALL}


def documented_name(described: Described) -> str:
    """The name that a scrape shows: a counter's ends with _total."""
    return f"{described.name}_total" if described.kind == "counter" else described.name
