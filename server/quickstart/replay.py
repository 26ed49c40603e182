"""The last two days of the year, happening again: flights are announced, leave, land, and are cancelled.

Every round is a few hours. It announces the flights of these hours, lets the flights of the round before leave (or
cancels them), and the flights of the round before that land: late news about old rows, as airports have it. One flight
in fifty is announced twice, and the duplicate is deleted a round later. In the end the table holds the year as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from server.quickstart.data import LIVE_DAYS
from server.quickstart.served import Connection

HOURS = ((0, 9), (9, 13), (13, 17), (17, 24))
ANNOUNCED_TWICE = 50

_ANNOUNCED = (
    "year", "month", "day", "sched_dep_time", "sched_arr_time", "carrier", "flight", "tailnum",
    "origin", "dest", "distance", "hour", "minute", "time_hour",
)  # fmt: skip

_ANNOUNCE = f"""
INSERT INTO flights ({", ".join(_ANNOUNCED)}, status)
VALUES ({", ".join(["%s"] * len(_ANNOUNCED))}, 'scheduled') RETURNING id
"""
_LEAVE = "UPDATE flights SET dep_time = %s, dep_delay = %s, status = 'departed' WHERE id = %s"
_CANCEL = "UPDATE flights SET status = 'cancelled' WHERE id = %s"
_LAND = "UPDATE flights SET arr_time = %s, arr_delay = %s, air_time = %s, status = %s WHERE id = %s"
_WITHDRAW = "DELETE FROM flights WHERE id = %s"


@dataclass(slots=True)
class Flight:
    """A flight as the data set tells it, and its row's id once it is announced."""

    told: dict[str, str]
    id: int = 0

    def __getitem__(self, column: str) -> str | None:
        value = self.told[column]
        return None if value == "NA" else value

    @property
    def cancelled(self) -> bool:
        return self["dep_time"] is None


@dataclass(frozen=True, slots=True)
class Round:
    """What changed in one transaction."""

    title: str
    announced: int
    departed: int
    landed: int
    cancelled: int
    withdrawn: int
    transaction: str
    """Its id."""

    @property
    def rows(self) -> int:
        return self.announced + self.departed + self.landed + self.cancelled + self.withdrawn

    def __str__(self) -> str:
        return (
            f"{self.title}: {self.announced} announced, {self.departed} departed, {self.landed} landed or diverted, "
            f"{self.cancelled} cancelled, {self.withdrawn} duplicates deleted"
        )


def rounds(live: Sequence[dict[str, str]]) -> list[tuple[str, list[Flight]]]:
    """The flights by the hours they were to leave in; two empty rounds at the end let the last ones land."""

    def slot(flight: Flight) -> tuple[int, int]:
        hour = int(flight.told["hour"])
        return int(flight.told["day"]), next(i for i, (start, end) in enumerate(HOURS) if start <= hour < end)

    flights = sorted((Flight(told) for told in live), key=slot)
    parts = [
        (f"{day} December, {HOURS[part][0]:02}:00 to {HOURS[part][1]:02}:00", list(members))
        for (day, part), members in groupby(flights, key=slot)
    ]
    return [*parts, (f"{LIVE_DAYS[-1]} December, midnight", []), ("New Year", [])]


def replay(connection: Connection, live: Sequence[dict[str, str]]) -> Iterator[Round]:
    """Make the rounds happen, one transaction each; yields each when it has been committed."""
    waiting: list[Flight] = []
    flying: list[Flight] = []
    duplicates: list[int] = []
    for title, announced in rounds(live):
        with connection.transaction(), connection.cursor() as cursor:
            leaving = [flight for flight in waiting if not flight.cancelled]
            cancelled = [flight for flight in waiting if flight.cancelled]
            cursor.executemany(_LEAVE, [(f["dep_time"], f["dep_delay"], f.id) for f in leaving])
            cursor.executemany(_CANCEL, [(f.id,) for f in cancelled])
            cursor.executemany(_LAND, [_landing(f) for f in flying])
            cursor.executemany(_WITHDRAW, [(number,) for number in duplicates])
            ((transaction,),) = cursor.execute("SELECT pg_current_xact_id()::text").fetchall()
            done = Round(
                title, len(announced), len(leaving), len(flying), len(cancelled), len(duplicates), str(transaction)
            )
            for flight, number in zip(announced, _announce(connection, announced), strict=True):
                flight.id = number
            duplicates = _announce(connection, announced[::ANNOUNCED_TWICE])
        waiting, flying = announced, leaving
        yield done


def _announce(connection: Connection, flights: Sequence[Flight]) -> list[int]:
    """Insert flights before they have left; returns the ids of their rows."""
    numbers: list[int] = []
    with connection.cursor() as cursor:
        cursor.executemany(_ANNOUNCE, [[f[column] for column in _ANNOUNCED] for f in flights], returning=True)
        while flights:
            row = cursor.fetchone()
            assert row is not None
            numbers.append(int(str(row[0])))
            if not cursor.nextset():
                break
    return numbers


def _landing(flight: Flight) -> tuple[object, ...]:
    diverted = flight["arr_delay"] is None
    return flight["arr_time"], flight["arr_delay"], flight["air_time"], "diverted" if diverted else "landed", flight.id
