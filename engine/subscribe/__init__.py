"""Subscriptions: the changes of a table, view, stream table or query as they are committed.

`interface` is what the server asks for and gets; the hub of a database evaluates each distinct subscription once.
"""

from engine.subscribe.interface import (
    CLIENT_SETTINGS,
    NO_ENVELOPE,
    AsOf,
    Batch,
    CopyOutput,
    Described,
    Envelope,
    EnvelopeKind,
    Feed,
    Output,
    PassOn,
    Prepared,
    RowOutput,
    Subscribe,
    SubscriptionHub,
)

__all__ = [
    "CLIENT_SETTINGS",
    "NO_ENVELOPE",
    "AsOf",
    "Batch",
    "CopyOutput",
    "Described",
    "Envelope",
    "EnvelopeKind",
    "Feed",
    "Output",
    "PassOn",
    "Prepared",
    "RowOutput",
    "Subscribe",
    "SubscriptionHub",
]
