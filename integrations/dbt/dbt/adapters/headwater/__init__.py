"""dbt's adapter for Headwater: PostgreSQL's, and stream tables, queues and registers."""

from dbt.adapters.base.plugin import AdapterPlugin
from dbt.adapters.headwater.connections import HeadwaterConnectionManager, HeadwaterCredentials
from dbt.adapters.headwater.impl import HeadwaterAdapter
from dbt.include.headwater import PACKAGE_PATH

__all__ = ["HeadwaterAdapter", "HeadwaterConnectionManager", "HeadwaterCredentials", "Plugin"]

Plugin = AdapterPlugin(
    adapter=HeadwaterAdapter,  # type: ignore[arg-type]  # as PostgreSQL's: the protocol has narrower signatures
    credentials=HeadwaterCredentials,
    include_path=PACKAGE_PATH,
    dependencies=["postgres"],
)
