"""What the auditor reads where objects are lost: all else, so that a loss is a violation and does not end the soak."""

import json
from types import SimpleNamespace
from typing import Any

from pyroaring import BitMap

from logstore.cursors.cursor_state import pack_acknowledged
from logstore.positions import LedgerId
from tests.soak.audit.evidence import PRIMARY, RECORDS, TIERED, digest
from tests.soak.audit.stored_content import BucketStore, StoredContent, read_newest_records


class NoSuchKey(Exception):
    """S3's answer where nothing stands."""


def _store(**bodies: bytes) -> BucketStore:
    """These objects, in every bucket."""

    def get_object(*, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: N803 - boto3's names
        if Key not in objects:
            raise NoSuchKey
        return {"Body": SimpleNamespace(read=lambda: objects[Key])}

    objects = {key.replace("__", "/"): body for key, body in bodies.items()}
    listed = [{"Contents": [{"Key": key, "Size": len(body)} for key, body in objects.items()]}]
    paginator = SimpleNamespace(paginate=lambda **_: listed)
    client = SimpleNamespace(
        get_object=get_object,
        get_paginator=lambda _: paginator,
        exceptions=SimpleNamespace(NoSuchKey=NoSuchKey),
    )
    return BucketStore(client=client, buckets={role: role for role in (PRIMARY, TIERED, RECORDS)})


def test_lost_objects_of_every_kind_are_missing_and_nothing_else_is() -> None:
    """A segment, a tiered copy, a cursor's snapshot, a schema and a bucket of delayed messages."""
    row = pack_acknowledged({LedgerId(1): BitMap([3])})
    tables: dict[str, Any] = {
        "ledger_list": [{"list_id": 1, "topic_id": 1, "component": "MANAGED_LEDGER"}],
        "ledger": [{"ledger_id": number, "list_id": 1, "place": number} for number in (1, 2)],
        "ledger_copy": [{"ledger_id": number, "kind": "LEDGER", "context": "{}"} for number in (1, 3, 4, 5)]
        + [{"ledger_id": 2, "kind": "OFFLOADED_LEDGER", "context": json.dumps({"uuid": "u"})}],
        "segment": [{"ledger_id": number, "number": 0, "first_entry": 0} for number in (1, 3, 4, 5)],
        "cursor": [
            {
                "topic_id": 1,
                "name": "s",
                "mark_ledger": 1,
                "mark_entry": 0,
                "acknowledged": row,
                "snapshot_ledger": 3,
            }
        ],
        "schema_version": [{"ledger_id": 4}],
        "delayed_bucket": [{"ledger_id": 5}],
    }
    reading = StoredContent(tables, _store())
    assert reading.entries() == {1: {}}
    assert reading.acknowledged() == {(1, "s"): ((1, 0), frozenset({(1, 3)}))}
    assert reading.schemas() == {4: digest(b"")}
    assert reading.buckets() == {5: []}


def test_block_of_the_record_log_that_is_lost_records_nothing() -> None:
    """The ledgers in it are then missing in the record log."""
    manifest = json.dumps({"blocks": [{"kind": "ledger", "block_id": "b"}]}).encode()
    assert read_newest_records(_store(records__manifest__1=manifest)) == {}
