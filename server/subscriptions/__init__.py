"""SUBSCRIBE as clients meet it: statements, portals and cursors whose rows come from the engine's hub.

PostgreSQL is asked about everything it knows better: each statement has a *stand-in*, a SELECT with the same columns
and parameters that finds nothing (``describe_query``). PostgreSQL prepares, describes and binds it under the client's
own names; what runs in its place is the subscription (``subscriber``). Portals and cursors are kept here and not in
PostgreSQL (``held``), where each would hold a snapshot, and so hold back vacuum, for as long as somebody listens.
"""
