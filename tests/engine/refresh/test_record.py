"""The record of a refresh: what `_finish_refresh` is given."""

from __future__ import annotations

import json

from catalog.values import Action, Initiator, RefreshStatus
from engine.refresh.record import RefreshRecord


def test_only_what_is_known_is_given() -> None:
    record = RefreshRecord(action=Action.SKIP, status=RefreshStatus.SKIPPED, initiated_by=Initiator.SCHEDULER)
    assert json.loads(record.to_json()) == {"action": "SKIP", "status": "SKIPPED", "initiated_by": "SCHEDULER"}


def test_zero_and_false_are_known() -> None:
    record = RefreshRecord(
        action=Action.FULL,
        status=RefreshStatus.FAILED,
        initiated_by=Initiator.MANUAL,
        rows_inserted=0,
        was_full_fallback=False,
        row_id_salt=0,
        frontier={"snapshot": "1:1:", "xid": None, "change_id": None},
    )
    given = json.loads(record.to_json())
    assert (given["rows_inserted"], given["was_full_fallback"], given["row_id_salt"]) == (0, False, 0)
    assert given["frontier"] == {"snapshot": "1:1:", "xid": None, "change_id": None}
