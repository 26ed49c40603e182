"""Which captured changes a frontier has seen."""

from __future__ import annotations


def unseen(snapshot: str, own: str = "NULL::pg_catalog.xid8", last: str = "0") -> str:
    """A condition on a change (alias ``c``, a row of a buffer) that holds if the frontier has not seen it.

    The arguments are SQL: the frontier's ``snapshot``, its ``own`` transaction, NULL where it had written nothing, and
    the ``last`` change that was seen of that one. A change is unseen if its transaction was not visible to the
    snapshot. Of the frontier's own transaction that says nothing, since no snapshot lists its own transaction as
    running, and it may look as if it was over: there the changes count that were made after the last one. Of most
    changes one comparison tells: their transactions are younger than both.

    It is one expression: of a comparison of its own PostgreSQL would believe, by statistics of transactions long gone,
    that hardly any row satisfies it. Of this it assumes that every second row does.

    ``pgtrickle._unseen`` gives the same text where no compiler is at hand.
    """
    return (
        f'CASE WHEN c."__pgt_xid" > GREATEST({own}, pg_catalog.pg_snapshot_xmax({snapshot})) THEN TRUE'
        f' WHEN c."__pgt_xid" = {own} THEN c."__pgt_change_id" > {last}'
        f' ELSE NOT pg_catalog.pg_visible_in_snapshot(c."__pgt_xid", {snapshot}) END'
    )
