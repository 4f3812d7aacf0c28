"""Buffers of many topics out of their logs, on a real Spark and a real object store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.deletion.retention import RetentionPolicy
from logstore.errors import UploadUnproven
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import segment_key
from logstore.ports.catalog.deletion import AuditCause, Claim
from logstore.ports.catalog.log import BeginTransactionWrite, EndTransactionWrite, Topic
from logstore.positions import TopicId
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from logstore.transactions.buffer_serialization import BufferFiles, BuildTransactionBuffersJob
from logstore.transactions.transaction_buffer import TransactionBuffer
from logstore.transactions.transaction_ids_and_states import Participant, TransactionId
from spark.job_mains import catalog_job_mains
from spark.job_runner import SparkBulkJobs
from spark.published_output import PublishedOutputs
from spark.warm_session import WarmSession
from tests.spark.lost_puts import losing_puts
from workers.assembly.log_store import LogStore
from workers.assembly.log_store_from_settings import executor_catalog_and_bucket_addresses, open_log_store
from workers.settings import Settings

pytestmark = pytest.mark.external_service


@pytest.fixture
def log(settings: Settings) -> Iterator[LogStore]:
    with open_log_store(settings) as opened:
        yield opened


def _topic(log: LogStore, name: str) -> Topic:
    return log.catalog.topics.create_topic(f"persistent://tenant/namespace/{name}", RetentionPolicy())


def _append(log: LogStore, topic: Topic, txn: TransactionId | None = None) -> None:
    log.topic_logs.append(topic, ProducedEntries(entries=[NewEntry(payload=b"x")] * 2, txn=txn))


def _ended(log: LogStore, topic: Topic, *, commit: bool | None) -> None:
    """One transaction of two entries; None leaves it open."""
    txn = log.committer.submit(BeginTransactionWrite(tc_id=0, timeout_s=600)).result().txn
    _append(log, topic, txn)
    if commit is not None:
        log.committer.submit(EndTransactionWrite(txn=txn, commit=commit)).result()
        claim = Claim(workflow_id="w", run_id="r", ttl_s=0)
        log.broadcasts.broadcast_batch(log.catalog.transactions.claim_decided_transactions(claim, limit=10))


def _built(
    settings: Settings, warm: WarmSession, folder: Path, *topics: Topic
) -> tuple[BulkJobSummary, dict[TopicId, TransactionBuffer]]:
    jobs = SparkBulkJobs(
        warm, PublishedOutputs(folder), lambda: catalog_job_mains(executor_catalog_and_bucket_addresses(settings))
    )
    job = BuildTransactionBuffersJob(run_id=f"run-{len(topics)}", topics=tuple(one.topic_id for one in topics))
    done = jobs.run_job(job, lambda _: None)
    files = BufferFiles(Path(done.folder))
    return done, dict(one for part in range(done.counts["parts"]) for one in files.read_part(part))


def test_buffers_of_all_topics_are_those_of_sql(
    log: LogStore, settings: Settings, warm: WarmSession, tmp_path: Path
) -> None:
    """Whole logs are read, in every ledger; topics without transactions need no snapshot, a damaged one stops none."""
    topics = [_topic(log, name) for name in ("first", "second", "third")]
    for topic in topics:
        _append(log, topic)
        _ended(log, topic, commit=False)
        log.topic_logs.roll(topic)
        _ended(log, topic, commit=True)
        _ended(log, topic, commit=None)
    _append(log, _topic(log, "plain"))
    lost = _topic(log, "lost")
    _ended(log, lost, commit=False)
    ledger_id = log.catalog.ledgers.list_ledgers(lost.topic_id)[0].ledger_id
    log.objects.delete([segment_key(ledger_id, 0)])
    expected = {one.topic_id: log.catalog.transaction_snapshots.read_buffer(one.topic_id) for one in topics}
    assert all(one.hidden and one.open for one in expected.values())

    done, found = _built(settings, warm, tmp_path)
    assert found == expected
    counts = {name: done.counts[name] for name in ("topics", "buffers", "empty", "gone", "unreadable")}
    assert counts == {"topics": 5, "buffers": 3, "empty": 1, "gone": 0, "unreadable": 1}
    (why,) = done.facts.items()
    assert why[0] == f"left out: topic {lost.topic_id}"
    assert f"{ledger_id:016x}" in why[1]


def test_commit_that_the_log_does_not_tell_is_that_of_the_snapshot_before(
    log: LogStore, settings: Settings, warm: WarmSession, tmp_path: Path
) -> None:
    """Its topic was resolved by hand, and the transaction is forgotten."""
    topic = _topic(log, "resolved")
    txn = log.committer.submit(BeginTransactionWrite(tc_id=0, timeout_s=600)).result().txn
    _append(log, topic, txn)
    log.committer.submit(EndTransactionWrite(txn=txn, commit=True)).result()
    cause = AuditCause(actor="tests", reason="", workflow_id="")
    assert log.catalog.transactions.settle_untold_participant(txn, Participant(topic.topic_id), cause).finished_us
    rows = log.catalog.transaction_snapshots.read_buffer(topic.topic_id)
    assert log.buffer_snapshots.replace_snapshot(topic.topic_id, rows)
    assert log.catalog.transactions.remove_finished_transactions(older_than_s=-1, limit=10) == 1
    assert _built(settings, warm, tmp_path, topic)[1] == {topic.topic_id: rows}


@pytest.mark.parametrize("suffix", ["meta.json", ".parquet"])
def test_snapshot_whose_upload_is_answered_and_not_stored_replaces_none(
    log: LogStore, settings: Settings, warm: WarmSession, tmp_path: Path, suffix: str
) -> None:
    """It is read back before the switch (apache/pulsar#22839). A later attempt switches."""
    topic = _topic(log, "lost")
    _ended(log, topic, commit=False)
    before = log.catalog.transaction_snapshots.read_buffer(topic.topic_id)
    assert log.buffer_snapshots.replace_snapshot(topic.topic_id, before)
    current = log.catalog.transaction_snapshots.get_snapshot(topic.topic_id)
    _ended(log, topic, commit=False)

    _, buffers = _built(settings, warm, tmp_path, topic)
    with losing_puts(log, suffix) as lost_urls, pytest.raises(UploadUnproven, match="not there"):
        log.buffer_snapshots.replace_snapshot(topic.topic_id, buffers[topic.topic_id])
    assert lost_urls
    assert log.catalog.transaction_snapshots.get_snapshot(topic.topic_id) == current
    assert log.buffer_snapshots.load_readable_snapshot(topic.topic_id) == before
    assert log.buffer_snapshots.replace_snapshot(topic.topic_id, buffers[topic.topic_id])
    assert log.buffer_snapshots.load_readable_snapshot(topic.topic_id) == buffers[topic.topic_id] != before


def test_topics_that_were_asked_for_are_built_and_those_gone_are_counted(
    log: LogStore, settings: Settings, warm: WarmSession, tmp_path: Path
) -> None:
    """One of which a deletion has begun has no use for a snapshot."""
    wanted, gone, other = (_topic(log, name) for name in ("wanted", "gone", "other"))
    for topic in (wanted, gone, other):
        _ended(log, topic, commit=False)
    log.catalog.phase_one.begin_topic_deletion(
        gone.topic_id, gone.name, AuditCause(actor="tests", reason="", workflow_id="w")
    )
    done, found = _built(settings, warm, tmp_path, wanted, gone)
    assert found == {wanted.topic_id: log.catalog.transaction_snapshots.read_buffer(wanted.topic_id)}
    assert (done.counts["gone"], done.counts["topics"]) == (1, 2)
