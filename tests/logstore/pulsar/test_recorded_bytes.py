"""What values recorded from a real cluster refer to, compared with what Pulsar said of them. See `record_bytes`."""

import json
from typing import Any, Final

import pytest

from logstore.pulsar.ledger_metadata import PulsarComponent, find_stated_owner, parse_ledger_metadata
from logstore.pulsar.ledger_references import (
    find_cursor_ledger_references,
    find_cursor_references,
    find_log_allocation_reference,
    find_log_segment_reference,
    find_managed_ledger_references,
    find_schema_references,
)
from tests.logstore.pulsar.record_bytes import EXPECTED, RECORDED

_EXPECTED: Final[dict[str, Any]] = json.loads(EXPECTED.read_text(encoding="utf-8"))
_OWNERS: Final = {
    "ledger_messages_closed": (PulsarComponent.MANAGED_LEDGER, "managed-ledgers/public/default/persistent/orders"),
    "ledger_messages_open": (PulsarComponent.MANAGED_LEDGER, "managed-ledgers/public/default/persistent/orders"),
    "ledger_cursor": (PulsarComponent.MANAGED_LEDGER, "managed-ledgers/public/default/persistent/orders/__compaction"),
    "ledger_compacted": (
        PulsarComponent.COMPACTED_LEDGER,
        "managed-ledgers/public/default/persistent/orders/__compaction",
    ),
    "ledger_schema": (PulsarComponent.SCHEMA, "schemas/public/default/parts"),
    "ledger_bucket": (PulsarComponent.DELAYED_INDEX_BUCKET, "managed-ledgers/public/default/persistent/delayed/later"),
    "ledger_package": None,
    "ledger_table_service": None,
}
"""Owner that the metadata of each ledger state, by the names that the fill of the cluster gave."""


def read(name: str) -> bytes:
    return (RECORDED / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("name", ["managed_ledger", "managed_ledger_offloaded", "managed_ledger_offloading"])
def test_a_managed_ledger_refers_to_what_the_broker_lists(name: str) -> None:
    references = find_managed_ledger_references(read(name))
    assert list(references.ledger_ids) == _EXPECTED[name]["ledger_ids"]
    assert not references.shadow_source


def test_a_shadow_topic_lists_ledgers_of_its_source() -> None:
    """The broker also follows the open ledger of the source, which the znode of the shadow does not list."""
    references, expected = (
        find_managed_ledger_references(read("managed_ledger_shadow")),
        _EXPECTED["managed_ledger_shadow"],
    )
    assert references.shadow_source == expected["shadow_source"]
    assert list(references.ledger_ids) == expected["ledger_ids"][: len(references.ledger_ids)]


def test_complete_offloads_are_those_that_the_broker_shows() -> None:
    references = find_managed_ledger_references(read("managed_ledger_offloaded"))
    expected = _EXPECTED["managed_ledger_offloaded"]
    offloaded = [each for each, done in zip(expected["ledger_ids"], expected["offloaded"], strict=True) if done]
    assert [attempt.ledger_id for attempt in references.offloads if attempt.complete] == offloaded


def test_an_interrupted_offload_is_named_and_not_complete() -> None:
    (attempt,) = find_managed_ledger_references(read("managed_ledger_offloading")).offloads
    assert not attempt.complete
    assert attempt.bucket == "pulsar-offload"


def test_a_cursor_refers_to_its_buckets() -> None:
    references = find_cursor_references(read("cursor_buckets"))
    ledger_ids = sorted(bucket.ledger_id for bucket in references.index_buckets)
    assert ledger_ids == _EXPECTED["cursor_buckets"]["bucket_ledger_ids"]


def test_the_state_of_a_compaction_cursor_is_in_its_ledger() -> None:
    references = find_cursor_references(read("cursor_compaction"))
    assert references.cursor_ledger_id == _EXPECTED["cursor_compaction"]["cursor_ledger_id"]
    compacted = _EXPECTED["cursor_ledger_entry"]["compacted_ledger_id"]
    assert find_cursor_ledger_references(read("cursor_ledger_entry")) == compacted
    assert references.compacted_ledger_id != compacted, "the value in the znode is old"


def test_a_closed_compaction_cursor_names_the_compacted_ledger_itself() -> None:
    references = find_cursor_references(read("cursor_compaction_closed"))
    assert references.cursor_ledger_id is None
    assert references.compacted_ledger_id == _EXPECTED["cursor_compaction_closed"]["compacted_ledger_id"]


def test_a_schema_refers_to_the_ledgers_of_both_versions() -> None:
    references = find_schema_references(read("schema_locator"))
    assert list(references) == _EXPECTED["schema_locator"]["ledger_ids"]
    assert len(references) == 2


@pytest.mark.parametrize("name", ["log_segment_completed", "log_segment_in_progress"])
def test_a_segment_of_a_log_refers_to_a_ledger(name: str) -> None:
    assert find_log_segment_reference(read(name)) == _EXPECTED[name]["ledger_id"]


def test_an_allocation_that_was_used_refers_to_nothing() -> None:
    assert find_log_allocation_reference(read("log_allocation")) is None


@pytest.mark.parametrize("name", _OWNERS)
def test_the_metadata_of_a_ledger_state_what_bookkeeper_shows(name: str) -> None:
    metadata = parse_ledger_metadata(read(name))
    assert metadata.state.value == _EXPECTED[name]["state"]
    shown = {key: value.decode() for key, value in metadata.custom.items() if key != "pulsar/compactedTo"}
    assert shown == _EXPECTED[name]["custom"]
    owner = find_stated_owner(metadata)
    assert (owner and (owner.component, owner.path)) == _OWNERS[name]
