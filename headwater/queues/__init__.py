"""Queues for Python programs: send events, and consume them in batches, each exactly once if need be.

`docs/python.md` has examples. Everything is done by the documented functions of the schema `pgque`, so that this also
works with PgQue's own.
"""

from headwater.queues.async_batches import AsyncBatch
from headwater.queues.batches import Batch
from headwater.queues.consumer import Consumer, consumer
from headwater.queues.events import BatchLost, Event
from headwater.queues.producers import AsyncProducer, Producer

__all__ = ["AsyncBatch", "AsyncProducer", "Batch", "BatchLost", "Consumer", "Event", "Producer", "consumer"]
