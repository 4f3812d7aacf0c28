"""Indexes of many topics out of their logs, on a real Spark, a real object store and a real catalog."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from logstore.delayed.index_build_job import BuildDelayedIndexJob, BuiltIndexFiles, BuiltTopicIndex
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import UploadUnproven
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import segment_key
from logstore.ports.catalog.deletion import AuditCause, Claim
from logstore.ports.catalog.log import BeginTransactionWrite, EndTransactionWrite, Topic
from logstore.positions import Position
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from logstore.transactions.transaction_ids_and_states import TransactionId
from spark.job_mains import catalog_job_mains
from spark.job_runner import SparkBulkJobs
from spark.published_output import PublishedOutputs
from spark.warm_session import WarmSession
from tests.spark.lost_puts import losing_puts
from workers.assembly.log_store import LogStore
from workers.assembly.log_store_from_settings import executor_catalog_and_bucket_addresses, open_log_store
from workers.settings import Settings

pytestmark = pytest.mark.external_service

_HOUR_MS: Final = 3_600_000
_CAUSE: Final = AuditCause(actor="tests", reason="", workflow_id="w")


@pytest.fixture
def log(settings: Settings) -> Iterator[LogStore]:
    with open_log_store(settings) as opened:
        yield opened


def _topic(log: LogStore, name: str) -> Topic:
    return log.catalog.topics.create_topic(f"persistent://tenant/namespace/{name}", RetentionPolicy())


def _append(log: LogStore, topic: Topic, *hours: int | None, txn: TransactionId | None = None) -> list[Position]:
    """One segment with an entry for each: due in so many hours, past if negative, or not delayed."""
    now_ms = log.catalog.delayed.now_ms()
    times = [None if one is None else now_ms + one * _HOUR_MS for one in hours]
    found = log.topic_logs.append(
        topic, ProducedEntries(entries=[NewEntry(payload=b"x", deliver_at_ms=one) for one in times], txn=txn)
    )
    assert found.first
    return [replace(found.first, entry_id=found.first.entry_id + number) for number in range(len(hours))]


def _txn(log: LogStore) -> TransactionId:
    return log.committer.submit(BeginTransactionWrite(tc_id=0, timeout_s=600)).result().txn


class _Builds:
    """Bulk builds of one catalog."""

    def __init__(self, settings: Settings, warm: WarmSession, folder: Path) -> None:
        self._jobs = SparkBulkJobs(
            warm, PublishedOutputs(folder), lambda: catalog_job_mains(executor_catalog_and_bucket_addresses(settings))
        )
        self._runs = 0

    def build(
        self, *topics: Topic, messages: int = 4, buckets: int = 3
    ) -> tuple[BulkJobSummary, list[BuiltTopicIndex]]:
        self._runs += 1
        ids = tuple(one.topic_id for one in topics)
        job = BuildDelayedIndexJob(
            run_id=f"run-{self._runs}", topics=ids, messages=messages, buckets=buckets, workflow_id="build"
        )
        done = self._jobs.run_job(job, lambda _: None)
        self.files = BuiltIndexFiles(Path(done.folder))
        found = [one for part in range(done.counts["parts"]) for one in self.files.read_part(part)]
        return done, sorted(found, key=lambda one: one.topic_id)


@pytest.fixture
def builds(settings: Settings, warm: WarmSession, tmp_path: Path) -> _Builds:
    return _Builds(settings, warm, tmp_path)


def _indexed(log: LogStore, topic: Topic) -> list[Position]:
    """What the topic's buckets hold, in the order of delivery of each."""
    buckets = log.catalog.delayed.get_bucket_list(topic.topic_id).buckets
    return [at for one in buckets for rows in log.delayed.snapshots.iterate_rows(one) for at in rows.positions()]


def test_indexes_of_all_topics_hold_what_seals_would_have_put_there(log: LogStore, builds: _Builds) -> None:
    """Over several ledgers and buckets; entries that are due, hidden or behind an open transaction are left out."""
    topic, other = _topic(log, "first"), _topic(log, "second")
    _append(log, _topic(log, "plain"), None, None)
    wanted = [*_append(log, topic, 5, None, 3, -1), *_append(log, topic, 9, 8)]
    wanted = [wanted[at] for at in (0, 2, 4, 5)]
    log.topic_logs.roll(topic)
    aborted = _txn(log)
    _append(log, topic, 7, 7, txn=aborted)
    log.committer.submit(EndTransactionWrite(txn=aborted, commit=False)).result()
    wanted += _append(log, topic, 2, 4, 6)
    _append(log, topic, 1, txn=_txn(log))
    _append(log, topic, 1)
    others = _append(log, other, 3)

    done, built = builds.build()
    assert {name: done.counts[name] for name in ("topics", "buckets", "messages", "empty", "gone", "unreadable")} == {
        "topics": 2,
        "buckets": 3,
        "messages": 8,
        "empty": 0,
        "gone": 0,
        "unreadable": 0,
    }
    assert [log.delayed.publisher.publish_built_index(one, builds.files) for one in built] == [True, True]
    assert sorted(_indexed(log, topic)) == wanted
    assert _indexed(log, other) == others
    listed = log.catalog.delayed.get_bucket_list(topic.topic_id)
    assert [one.messages for one in listed.buckets] == [4, 3]
    assert listed.sealed_to == wanted[-1]
    sealed = log.delayed.sealer.drop_buckets_and_seal(other.topic_id, force=True)
    assert sealed.messages == 0


def test_a_build_takes_the_place_of_all_buckets_and_says_so_again(log: LogStore, builds: _Builds) -> None:
    """Old snapshots are retired by the switch; a publication that is repeated stores nothing and changes nothing."""
    topic = _topic(log, "topic")
    first = _append(log, topic, 5, 6)
    log.delayed.sealer.drop_buckets_and_seal(topic.topic_id, force=True)
    second = _append(log, topic, 3)
    log.delayed.sealer.drop_buckets_and_seal(topic.topic_id, force=True)
    before = log.catalog.delayed.get_bucket_list(topic.topic_id)
    assert len(before.buckets) == 2

    _, (built,) = builds.build(topic)
    assert built.removed == tuple(one.bucket_id for one in before.buckets)
    assert log.delayed.publisher.publish_built_index(built, builds.files)
    after = log.catalog.delayed.get_bucket_list(topic.topic_id)
    assert (len(after.buckets), sorted(_indexed(log, topic))) == (1, [*first, *second])
    assert {one.ledger_id for one in log.catalog.deletions.list_intents(None, limit=10)} == set(built.removed)
    assert log.delayed.publisher.publish_built_index(built, builds.files)
    assert log.catalog.delayed.get_bucket_list(topic.topic_id) == after


@pytest.mark.parametrize("suffix", ["meta.json", ".parquet"])
def test_a_bucket_whose_upload_is_answered_and_not_stored_replaces_none(
    log: LogStore, builds: _Builds, suffix: str
) -> None:
    """It is read back before the switch (apache/pulsar#22839). A later attempt switches."""
    topic = _topic(log, "lost")
    positions = _append(log, topic, 5, 6)
    log.delayed.sealer.drop_buckets_and_seal(topic.topic_id, force=True)
    positions += _append(log, topic, 3)
    log.delayed.sealer.drop_buckets_and_seal(topic.topic_id, force=True)
    before = log.catalog.delayed.get_bucket_list(topic.topic_id)

    _, (built,) = builds.build(topic)
    with losing_puts(log, suffix) as lost_urls, pytest.raises(UploadUnproven, match="not there"):
        log.delayed.publisher.publish_built_index(built, builds.files)
    assert lost_urls
    assert log.catalog.delayed.get_bucket_list(topic.topic_id) == before
    assert _indexed(log, topic) == positions
    assert log.delayed.publisher.publish_built_index(built, builds.files)
    assert len(log.catalog.delayed.get_bucket_list(topic.topic_id).buckets) == 1
    assert sorted(_indexed(log, topic)) == positions


def test_a_topic_may_grow_meanwhile_and_a_seal_that_came_first_stays(log: LogStore, builds: _Builds) -> None:
    """What is appended after the build began is not in it; a list that changed since is not built over."""
    topic = _topic(log, "grows")
    early = _append(log, topic, 5)
    _, (built,) = builds.build(topic)
    late = _append(log, topic, 6)
    assert log.delayed.publisher.publish_built_index(built, builds.files)
    assert _indexed(log, topic) == early
    assert log.catalog.delayed.get_bucket_list(topic.topic_id).sealed_to == early[-1]

    _, (again,) = builds.build(topic)
    log.delayed.sealer.drop_buckets_and_seal(topic.topic_id, force=True)
    standing = log.catalog.delayed.get_bucket_list(topic.topic_id)
    assert not log.delayed.publisher.publish_built_index(again, builds.files)
    assert log.catalog.delayed.get_bucket_list(topic.topic_id) == standing
    assert sorted(_indexed(log, topic)) == [*early, *late]


def test_topics_that_are_gone_due_or_damaged_are_counted_and_stop_no_other(log: LogStore, builds: _Builds) -> None:
    """The damaged one keeps the buckets that it has; the one whose messages have all come due loses its own."""
    good, gone, lost, due = (_topic(log, name) for name in ("good", "gone", "lost", "due"))
    for topic in (good, gone, lost):
        _append(log, topic, 5)
    _append(log, due, -1)
    log.catalog.phase_one.begin_topic_deletion(gone.topic_id, gone.name, _CAUSE)
    ledger_id = log.catalog.ledgers.list_ledgers(lost.topic_id)[0].ledger_id
    log.objects.delete([segment_key(ledger_id, 0)])

    done, built = builds.build(good, gone, lost, due)
    assert [one.topic_id for one in built] == [good.topic_id]
    counts = {name: done.counts[name] for name in ("topics", "buckets", "empty", "gone", "unreadable")}
    assert counts == {"topics": 4, "buckets": 1, "empty": 1, "gone": 1, "unreadable": 1}
    ((where, why),) = done.facts.items()
    assert where == f"left out: topic {lost.topic_id}"
    assert f"{ledger_id:016x}" in why


def test_a_build_claims_the_list_so_that_nobody_seals_meanwhile(log: LogStore, builds: _Builds) -> None:
    """Nothing rests on it; it spares work that would be lost."""
    topic = _topic(log, "claimed")
    _append(log, topic, 5)
    builds.build(topic)
    claim = log.catalog.delayed.claim_bucket_list
    assert not claim(topic.topic_id, Claim(workflow_id="seal", run_id="r", ttl_s=60))
    assert claim(topic.topic_id, Claim(workflow_id="build", run_id="r", ttl_s=60))
