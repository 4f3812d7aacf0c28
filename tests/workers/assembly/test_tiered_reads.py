"""Tiered copies on a real SeaweedFS: written in parts, read by ranges, read instead of a primary that is gone."""

import random
from collections.abc import Iterator
from io import BytesIO

import pytest

from logstore.deletion.retention import RetentionPolicy
from logstore.errors import MissingData
from logstore.identity.bucket_markers import MARKER_KEY
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import ledger_prefix, segment_key
from logstore.log.ledgers import CopyKind
from logstore.offload.tiered_copy import CopyLocation, data_key, index_key
from logstore.ports.catalog.deletion import AuditCause, Claim
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId
from workers.assembly.log_store import LogStore
from workers.assembly.log_store_from_settings import open_log_store
from workers.settings import Settings

pytestmark = pytest.mark.external_service

_BYTES = random.Random(3).randbytes(2 << 20)  # nothing that compresses
_UUID = "01234567-89ab-4cde-8f01-23456789abcd"


@pytest.fixture
def log(settings: Settings) -> Iterator[LogStore]:
    """A log store as every process opens it."""
    with open_log_store(settings) as opened:
        yield opened


@pytest.fixture
def topic(log: LogStore) -> Topic:
    """One closed ledger of two segments, together more than one part of an upload, and an open one."""
    made = log.catalog.topics.create_topic("persistent://a/b/cold", RetentionPolicy())
    for half in range(2):
        entries = [NewEntry(payload=b"%d %d " % (half, at) + _BYTES, key=f"k{at}") for at in range(5)]
        log.topic_logs.append(made, ProducedEntries(entries=entries))
    log.topic_logs.roll(made)
    log.topic_logs.append(made, ProducedEntries(entries=[NewEntry(payload=b"open")]))
    return made


def offload(log: LogStore, topic: Topic) -> LedgerId:
    """A published copy of the closed ledger."""
    ledger = log.catalog.ledgers.list_ledgers(topic.topic_id)[0].ledger_id
    done = log.offloader.upload_and_prove(ledger, _UUID, timeout_s=600)
    assert done.evidence
    assert done.evidence.size_bytes > 16 << 20  # one PUT would not do
    assert log.catalog.offloads.publish_tiered_copy(ledger, _UUID)
    return ledger


def remove_primary(log: LogStore, topic: Topic) -> None:
    """Both phases, through the storage that the wiring gives."""
    (copy,) = log.catalog.offloads.list_removable_primaries(topic.topic_id, None, after=LedgerId(-1), limit=10)
    assert log.offloader.prove(copy).entries == copy.entries
    log.catalog.offloads.detach_primary_copies(
        topic.topic_id,
        None,
        proved_uuid_by_ledger={copy.statement.ledger_id: copy.context["uuid"]},
        batch_id="b",
        claim=Claim(workflow_id="w", run_id="", ttl_s=60),
        cause=AuditCause(actor="tests", reason="a test", workflow_id="w"),
    )
    storage, (intent,) = log.storages[CopyKind.LEDGER.value], log.catalog.deletions.list_intents(None, limit=10)
    done = storage.remove_copies({intent.row_id: storage.inspect_copy(intent)}, on_progress=lambda _: None)
    assert done[intent.row_id].error is None


def test_offloaded_ledger_is_read_alike_from_either_copy(log: LogStore, topic: Topic) -> None:
    """Entries, positions, keys and times: a reader cannot tell that the primary copy is gone."""
    before = list(log.topic_logs.scan(topic))
    ledger = offload(log, topic)
    remove_primary(log, topic)
    assert list(log.objects.list(ledger_prefix(ledger))) == []
    assert list(log.topic_logs.scan(topic)) == before
    few = list(log.topic_logs.scan(topic, columns=["key"]))
    assert [entry.key for entry in few] == [entry.key for entry in before]


def test_reader_under_way_goes_over_to_the_tiered_copy(log: LogStore, topic: Topic) -> None:
    """An object that vanishes between two entries: no entry is lost, none comes twice."""
    before = list(log.topic_logs.scan(topic))
    ledger = offload(log, topic)
    scan = log.topic_logs.scan(topic)
    found = [next(scan)]
    log.objects.delete([segment_key(ledger, number) for number in range(2)])
    assert found + list(scan) == before


def test_tiered_pair_is_deleted_by_what_the_context_says(log: LogStore, topic: Topic) -> None:
    """Both keys and no others; what is listed then and held nowhere is data loss, and said to be."""
    ledger = offload(log, topic)
    bucket = log.buckets(CopyLocation(log.offloader._driver_metadata["bucket"]))
    bucket.put_file_if_absent("another-applications", BytesIO(b"x"), metadata={}, require_may_proceed=lambda: None)
    remove_primary(log, topic)
    assert bucket.delete([data_key(_UUID, ledger), index_key(_UUID, ledger)]).failed == {}
    with pytest.raises(MissingData, match="no copy holds it"):
        list(log.topic_logs.scan(topic))
    log.catalog.phase_one.detach_ledgers(
        topic.topic_id,
        [ledger],
        force=True,
        batch_id="c",
        claim=Claim(workflow_id="w", run_id="", ttl_s=60),
        cause=AuditCause(actor="tests", reason="a test", workflow_id="w"),
    )
    assert [entry.payload for entry in log.topic_logs.scan(topic)] == [b"open"]
    assert [found.key for found in bucket.list("")] == ["another-applications", MARKER_KEY]


def test_context_names_the_endpoint_but_for_the_homes_own_stack_whose_port_may_change(settings: Settings) -> None:
    """A worker elsewhere asks where the context says; a stack that starts on another port still finds its copies."""
    with open_log_store(settings) as elsewhere:
        assert elsewhere.offloader._driver_metadata["endpoint"] == settings.s3_endpoint
    port = settings.s3_endpoint.rpartition(":")[2]
    (settings.home / "ports.json").write_text(f'{{"s3": {port}}}')
    (settings.home / "credentials.json").write_text("{}")
    with open_log_store(settings) as own:
        assert "endpoint" not in own.offloader._driver_metadata
        assert own.offloader._driver_metadata["bucket"] == settings.tiered_bucket
