"""What is wanted of the flights: the stream tables of the quickstart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import LiteralString


@dataclass(frozen=True, slots=True)
class StreamTable:
    name: str
    purpose: str
    query: LiteralString


STREAM_TABLES = (
    StreamTable(
        "delays_by_airline",
        "flights, cancellations and delays of every airline in every month",
        """
        SELECT a.name AS airline,
               f.month,
               count(*) AS flights,
               count(*) FILTER (WHERE f.status = 'cancelled') AS cancelled,
               round(avg(f.dep_delay), 1) AS mean_departure_delay,
               round(avg(f.arr_delay), 1) AS mean_arrival_delay,
               max(f.arr_delay) AS worst_arrival_delay
        FROM flights f
        JOIN airlines a ON a.carrier = f.carrier
        GROUP BY a.name, f.month
        """,
    ),
    StreamTable(
        "worst_routes",
        "routes of at least 100 flights that arrive more than 15 minutes late on average",
        """
        SELECT f.origin,
               f.dest,
               d.name AS destination,
               count(*) AS flights,
               round(avg(f.arr_delay), 1) AS mean_arrival_delay
        FROM flights f
        JOIN airports d ON d.faa = f.dest
        WHERE f.arr_delay IS NOT NULL
        GROUP BY f.origin, f.dest, d.name
        HAVING count(*) >= 100 AND avg(f.arr_delay) > 15
        """,
    ),
    StreamTable(
        "planes_flown",
        "how often and how far each plane flew",
        """
        SELECT p.tailnum,
               p.manufacturer,
               p.model,
               p.year AS built,
               count(*) AS flights,
               sum(f.distance) AS miles
        FROM flights f
        JOIN planes p ON p.tailnum = f.tailnum
        WHERE f.status <> 'cancelled'
        GROUP BY p.tailnum, p.manufacturer, p.model, p.year
        """,
    ),
    StreamTable(
        "planes_by_manufacturer",
        "a stream table over that one: whose planes, how many, how old, how far",
        """
        SELECT manufacturer,
               count(*) AS planes,
               sum(flights) AS flights,
               sum(miles) AS miles,
               min(built) AS oldest,
               max(built) AS newest
        FROM planes_flown
        GROUP BY manufacturer
        """,
    ),
    StreamTable(
        "delays_by_weather",
        "delay against the weather of the hour, by airport and hour of the day",
        """
        SELECT f.origin,
               f.hour,
               CASE WHEN w.visib < 2 THEN 'fog'
                    WHEN w.precip > 0 THEN 'rain'
                    WHEN w.wind_speed > 20 THEN 'wind'
                    ELSE 'fair' END AS weather,
               count(*) AS flights,
               round(avg(f.dep_delay), 1) AS mean_departure_delay
        FROM flights f
        JOIN weather w ON w.origin = f.origin AND w.time_hour = f.time_hour
        GROUP BY f.origin, f.hour,
                 CASE WHEN w.visib < 2 THEN 'fog'
                      WHEN w.precip > 0 THEN 'rain'
                      WHEN w.wind_speed > 20 THEN 'wind'
                      ELSE 'fair' END
        """,
    ),
    StreamTable(
        "departure_board",
        "flights that have not left yet or are in the air",
        """
        SELECT f.id, f.origin, f.sched_dep_time, a.name AS airline, f.flight, d.name AS destination,
               f.dep_delay, f.status
        FROM flights f
        JOIN airlines a ON a.carrier = f.carrier
        JOIN airports d ON d.faa = f.dest
        WHERE f.status IN ('scheduled', 'departed')
        """,
    ),
)
