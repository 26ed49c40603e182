"""PostgreSQL settings made from the size of the machine."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import psutil

MIB = 1024 * 1024


def machine_settings(logs: Path) -> dict[str, str]:
    """Settings for a cluster that shares its machine with a relay and, perhaps, with Spark."""
    memory = psutil.virtual_memory().total // MIB

    def share(part: int, least: int, most: int) -> str:
        return f"{min(max(memory // part, least), most)}MB"

    return {
        "shared_buffers": share(8, 64, 4096),
        "effective_cache_size": share(2, 256, 1024 * 1024),
        "maintenance_work_mem": share(32, 64, 1024),
        "work_mem": share(512, 8, 64),
        "max_connections": "200",
        "max_prepared_transactions": "20",
        "max_wal_size": "4GB",
        # A database has a slot if tables are captured from the write-ahead log; it keeps no more than so much of that.
        "max_replication_slots": "32",
        "max_wal_senders": "32",
        "max_slot_wal_keep_size": "8GB",
        # When the server is stopped PostgreSQL writes what has changed since the last checkpoint, file by file.
        "checkpoint_timeout": "5min",
        # After a crash all files are first made durable as they are.
        "recovery_init_sync_method": sync_method(platform.system(), platform.release()),
        "random_page_cost": "1.1",
        "jit": "off",
        "autovacuum_naptime": "15s",
        "logging_collector": "on",
        "log_directory": str(logs),
        "log_filename": "postgres-%a.log",
        "log_rotation_age": "1d",
        "log_rotation_size": "0",
        "log_truncate_on_rotation": "on",
        "log_line_prefix": "%m [%p] %q%u@%d ",
    }


_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})")


def sync_method(system: str, release: str) -> str:
    """How PostgreSQL makes all files durable before it recovers: the file system at once, where it says what failed.

    Linux does since version 5.8. File by file it takes 2 ms each.

    >>> sync_method("Linux", "6.1.0-18-amd64"), sync_method("Linux", "5.4.0"), sync_method("Darwin", "23.1.0")
    ('syncfs', 'fsync', 'fsync')
    """
    version = _VERSION.match(release)
    known = system == "Linux" and version is not None and (int(version[1]), int(version[2])) >= (5, 8)
    return "syncfs" if known else "fsync"
