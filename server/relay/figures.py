"""What one process of the server has counted, as metrics add it up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from engine.publish.tally import PUBLISHED, PublicationTally
from engine.refresh.tally import TALLY, Tally
from engine.spark.tally import SparkLoad
from server.protocol import messages as m
from server.protocol.state import State
from server.relay.counts import RelayCounts
from server.relay.relay import Relay
from server.relay.session import RelaySession

STATES = ("starting", "active", "idle", "idle_in_transaction")


@dataclass(slots=True)
class Figures:
    """Of one process, or of several together."""

    connections: Counter[str] = field(default_factory=Counter)
    """Clients that are connected, by state."""
    relay: RelayCounts = field(default_factory=RelayCounts)
    tally: Tally = field(default_factory=Tally)
    published: PublicationTally = field(default_factory=PublicationTally)
    spark: SparkLoad | None = None
    """What its Spark has to do; None as long as there is none."""

    def add(self, other: Figures) -> None:
        """Count what another process has counted."""
        self.connections += other.connections
        self.relay.add(other.relay)
        self.tally.add(other.tally)
        self.published.add(other.published)
        if other.spark is not None:
            self.spark = other.spark if self.spark is None else self.spark + other.spark


class Clients(Protocol):
    """Those that relay to clients: this process, or several."""

    @property
    def max_connections(self) -> int:
        """So many clients may be connected at the same time."""
        ...

    @property
    def full(self) -> bool:
        """Whether so many are."""
        ...

    async def figures(self) -> Figures:
        """What all processes of the server have counted."""
        ...


@dataclass(frozen=True, slots=True)
class OneProcess:
    """A process that does all by itself."""

    relay: Relay
    spark: Callable[[], SparkLoad | None]

    @property
    def max_connections(self) -> int:
        return self.relay.context.limits.max_connections

    @property
    def full(self) -> bool:
        return self.relay.full

    async def figures(self) -> Figures:
        return own_figures(self.relay, self.spark())


def own_figures(relay: Relay | None, spark: SparkLoad | None) -> Figures:
    """What this process has counted up to now."""
    found = Figures(spark=spark)
    found.tally.add(TALLY)
    found.published.add(PUBLISHED)
    if relay is not None:
        found.relay.add(relay.counts)
        for session in relay.sessions:
            if (state := _state(session)) is not None:
                found.connections[state] += 1
            found.relay.statements += session.traffic.finished
            found.relay.from_client += session.client.received
            found.relay.from_postgres += session.backend.received
    return found


def together(figures: Iterable[Figures]) -> Figures:
    """What several processes have counted."""
    found = Figures()
    for each in figures:
        found.add(each)
    return found


def _state(session: RelaySession) -> str | None:
    """The state of a client's connection, None of one that has ended."""
    if session.state is State.CLOSED:
        return None
    if session.state not in (State.RELAY, State.INTERCEPTED):
        return "starting"
    traffic = session.traffic
    if session.dialogue is not None or traffic.outstanding or traffic.batch is not None:
        return "active"
    return "idle" if traffic.status == m.IDLE else "idle_in_transaction"
