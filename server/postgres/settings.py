"""PostgreSQL settings made from the size of the machine."""

from __future__ import annotations

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
        # When the server is stopped PostgreSQL writes what has changed since the last checkpoint, file by file.
        "checkpoint_timeout": "5min",
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
