"""An attempt to write a publication, and what its failures are called."""

from __future__ import annotations

from collections.abc import Callable

import asyncpg
import structlog
from deltalake.exceptions import DeltaError

from catalog.session import SqlError
from engine.mirror.arrow_copy import PipeBroken
from engine.mirror.delta_table import StorageFailed, WriteConflict
from engine.mirror.source import Connections
from engine.publish.net import Unpublishable
from engine.publish.publication import Interrupted, Publishing
from engine.publish.publications import Publication
from engine.publish.table import NotOurs, Published
from sql.errors import NotExpressible

log = structlog.get_logger(__name__)

__all__ = ["Connections", "attempted"]

CONFLICTS = 3
"""So often a table is read again that somebody else has written at once, as who compacts it."""


async def attempted(
    connected: Connections, publication: Publication, known: Published | None, count: Callable[[int, int], None]
) -> tuple[Published | None, str | None]:
    """Bring a publication up to date: its table, where it is known then, and what went wrong, None if nothing did.

    `count` is told of each commit: how many rows it has written, and removed.
    """
    for _ in range(CONFLICTS):
        try:
            return await Publishing(connected, publication, count, known).bring_up_to_date(), None
        except WriteConflict as error:
            log.info("publication overtaken", stream_table=publication.name, error=str(error))
            known = None
        except (Interrupted, asyncpg.UndefinedTableError) as reason:  # it is being dropped, or captured anew
            log.info("publication interrupted", stream_table=publication.name, reason=str(reason))
            return None, None
        except (NotOurs, Unpublishable) as error:
            return None, str(error)
        except NotExpressible as error:
            return None, f"cannot be published: {error}"
        except SqlError as error:
            return None, error.message
        except (StorageFailed, DeltaError, OSError) as error:
            return None, f"could not write to the location: {error}"
        except (PipeBroken, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            return None, f"could not read the stream table: {error}"
    return None, "the Delta table is being written by somebody else"
