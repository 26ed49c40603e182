"""Cron schedules: five fields, six with the seconds first, or an alias; their times are those of a time zone."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from catalog.session import SqlError

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


def check_schedule(schedule: str) -> str:
    """A schedule as the catalog has looked at it. Raises SqlError 22023 for cron that means nothing, or never comes."""
    if " " not in schedule and "@" not in schedule:
        return schedule
    try:
        found = next_time(schedule, "UTC", 0.0)
    except CronSimError as error:
        raise SqlError(
            "22023",
            f'invalid schedule "{schedule}"',
            detail=f"{str(error).capitalize()}.",
            hint="The fields of a cron expression are minute, hour, day of month, month and day of week, after the"
            " second where there are six.",
        ) from error
    if found is None:
        raise SqlError("22023", f'schedule "{schedule}" never comes')
    return schedule


@lru_cache(maxsize=4096)
def next_time(schedule: str, zone: str, after: float) -> float | None:
    """The first time after another one (seconds since 1970) at which a cron schedule fires, None if it never does.

    `zone` is a name of the IANA database. Raises CronSimError for an invalid expression, ZoneInfoNotFoundError for
    another name.

    >>> friday_evening = datetime(2025, 7, 4, 20, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
    >>> found = next_time("0 6 * * 1-5", "Europe/Berlin", friday_evening)
    >>> datetime.fromtimestamp(found, ZoneInfo("UTC")).isoformat()
    '2025-07-07T04:00:00+00:00'
    """
    start = datetime.fromtimestamp(after, ZoneInfo(zone))
    found = next(CronSim(ALIASES.get(schedule, schedule), start), None)
    return None if found is None else found.timestamp()
