"""A program that consumes: `consumer_program.py DSN QUEUE NAME [MEMBER [DEAD_SECONDS]]`.

It writes each event down in the batch's transaction, slowly, so that it can be killed in the middle, and ends with
status 0 when it is stopped.
"""

import sys
import time
from datetime import timedelta

from headwater.queues import consumer

SECONDS_FOR_AN_EVENT = 0.002


def main(dsn: str, queue: str, name: str, member: str | None = None, dead_seconds: str | None = None) -> None:
    dead_interval = None if dead_seconds is None else timedelta(seconds=float(dead_seconds))
    print("ready", flush=True)
    for batch in consumer(dsn, queue, name, member=member, dead_interval=dead_interval, poll_interval=0.5):
        with batch.transaction() as connection:
            for event in batch:
                row = [name, member, batch.id, event.id, event.payload]
                connection.execute("INSERT INTO done VALUES (%s, %s, %s, %s, %s)", row)
                time.sleep(SECONDS_FOR_AN_EVENT)
    print("stopped", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
