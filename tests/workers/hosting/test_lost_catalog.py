"""A database that goes while everything is at work on real servers: all that was answered is there again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra.stack.embedded_stack import StackAddresses
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import CatalogOutdated, PreconditionFailed
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId, Position
from logstore.reconciliation.findings import Finding, FindingKind
from spark.warm_session import SparkSettings, WarmSession
from tests.postgres import PostgresServer, postgres
from tests.servers import create_store_settings
from tests.spark.reconciliation.conftest import planner
from tests.spark.reconciliation.damage import Damaged
from tests.workers.hosting.losing import CAUSE, CLAIM, SUBSCRIPTION, Answers, Writers, destroy, flush, phase_two, reach
from tests.workers.hosting.test_rebuilding import lose, rebuilt
from workers.assembly.log_store import LogStore
from workers.assembly.log_store_from_settings import open_log_store
from workers.settings import Settings

__all__ = ["postgres"]

pytestmark = [pytest.mark.external_service, pytest.mark.timeout(900)]

_FLUSHES, _BETWEEN, _BEHIND = 3, 30, 60  # answers between two flushes, and behind the last
_WORK = ("transaction", "roll", "acknowledgement", "trim", "offload", "seal")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.all_faults)])
def settings(request: pytest.FixtureRequest, servers: StackAddresses, tmp_path: Path) -> Iterator[Settings]:
    """A log store of this test's own, on either database."""
    if request.param == "sqlite":
        yield create_store_settings(servers, tmp_path)
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database() as name:
        yield create_store_settings(servers, tmp_path, database_url=server.url(name))


def test_all_that_was_answered_is_there_again(settings: Settings, tmp_path: Path) -> None:
    """Appends where they were answered, commits as a whole, sequence ids; no id is given out twice, nothing is astray.

    Writers, plain, delayed and in transactions, consumers, trims, offloads and seals go on until the database is gone.
    The command's own job brings it back; a process with another copy of the database does no harm any more. Of all that
    a reconciliation finds right after, nothing was ever answered, though no age protects it.
    """
    answers = Answers()
    with open_log_store(settings) as log:
        topics = [log.catalog.topics.create_topic(f"persistent://a/b/{name}", RetentionPolicy()) for name in "xy"]
        consumed = log.catalog.topics.create_topic("persistent://a/b/z", RetentionPolicy())
        log.subscriptions.subscribe(consumed.topic_id, SUBSCRIPTION, latest=False)
    with Writers(settings, topics, consumed, answers).at_work():
        for _ in range(_FLUSHES):
            answers.await_more(_BETWEEN, each=1, of=_WORK)
            flush(settings, answers)
        answers.await_more(_BEHIND, each=1, of=_WORK)
        forgotten = tmp_path / "forgotten.db" if settings.database_url.startswith("sqlite") else None
        destroy(settings.database_url, answers, copy=forgotten)
    with _living_on(settings, forgotten, topics) as outdated:
        if forgotten:
            lose(settings)
        result = rebuilt(settings, spark_master="local[2]", max_absent_share=1.0)  # trims went on behind the flush
        assert result.refused is None
        outdated()
    assert result.adopted.adopted_segments > 0
    assert result.adopted.missing_data == 0
    with pytest.raises(PreconditionFailed, match="expected an empty one to rebuild into, found the catalog"):
        rebuilt(settings, spark_master="local[2]")
    with open_log_store(settings) as log:
        state = log.catalog.records.read_state()
        assert state.epoch == 2
        assert state.manifest > result.manifest, "what was adopted is flushed behind the manifest of the new epoch"
        _settle(log)
        _audit(log, topics, consumed, answers)
        store = Damaged(settings=settings, log=log)
        _reconcile(store, tmp_path, unnamed=result.adopted.detached + result.adopted.revived)
        _audit(log, topics, consumed, answers)
        _go_on(log, topics, answers)


@contextmanager
def _living_on(settings: Settings, copy: Path | None, topics: list[Topic]) -> Iterator[Callable[[], None]]:
    """A process with a database that was thought lost: it has detached what it must not delete; yields that look."""
    if copy is None:
        yield lambda: None
        return
    with open_log_store(settings.model_copy(update={"database_url": f"sqlite:///{copy}"})) as log:
        for topic in topics:
            first = log.catalog.ledgers.list_ledgers(topic.topic_id)[0].ledger_id
            batch = f"zombie-{topic.topic_id}"
            log.catalog.phase_one.detach_ledgers(
                topic.topic_id, [first], force=True, batch_id=batch, claim=CLAIM, cause=CAUSE
            )
        log.objects.require_ownership_once()

        def outdated() -> None:
            assert [phase_two(log, f"zombie-{topic.topic_id}") for topic in topics] == [0, 0]
            with pytest.raises(CatalogOutdated, match="of epoch 2"):
                log.records.flusher.flush()

        yield outdated


def _settle(log: LogStore) -> None:
    """What sweeps do: transactions that were open are past their time, those that are decided are told, intents end."""
    claim = Claim(workflow_id="transaction-coordinator/2", run_id="again", ttl_s=60)
    log.catalog.transactions.abort_expired_transactions(2, limit=1_000)
    while batch := log.catalog.transactions.claim_decided_transactions(claim, limit=100):
        assert not log.broadcasts.broadcast_batch(batch).failures
    wanted = log.catalog.deletions.count_undeleted_copies().estimated_inflight
    assert log.catalog.upkeep.move_abandoned_work_to_batch(batch_id="sweep", claim=claim, limit=1_000).intents == wanted
    assert phase_two(log, "sweep") == wanted


def _audit(log: LogStore, topics: list[Topic], consumed: Topic, answers: Answers) -> None:
    for topic in [*topics, consumed]:
        entries = list(log.topic_logs.scan(topic))
        found = {one.position: one.payload for one in entries}
        mine = {at: payload for (topic_id, at), payload in answers.entries.items() if topic_id == topic.topic_id}
        inside = {at: payload for (topic_id, at), payload in answers.inside.items() if topic_id == topic.topic_id}
        mine |= {at: payload for at, payload in inside.items() if payload in answers.committed}
        went = answers.asked[consumed.topic_id] if topic == consumed else None
        left = {at: payload for at, payload in mine.items() if went is None or at > went or at in found}
        assert {at: found.get(at) for at in left} == left
        if topic != consumed:
            assert answers.committed <= set(found.values())
            assert not answers.undone & set(found.values())
            late = {one.position for one in entries if one.deliver_at_ms}
            assert _sealed(log, topic) & found.keys() <= late
    # acknowledgements behind the last flush may be lost, and nothing counts as acknowledged that was not
    state = log.subscriptions.get(consumed.topic_id, SUBSCRIPTION).state
    assert answers.flushed[consumed.topic_id] <= reach(state)
    assert not any(
        topic_id == consumed.topic_id and answers.asked[topic_id] < at and state.covers(at)
        for topic_id, at in answers.entries
    )


def _sealed(log: LogStore, topic: Topic) -> set[Position]:
    """Entries that the index of delayed messages names."""
    buckets = log.catalog.delayed.get_bucket_list(topic.topic_id).buckets
    return {
        position for one in buckets for rows in log.delayed.snapshots.iterate_rows(one) for position in rows.positions()
    }


def _reconcile(store: Damaged, folder: Path, *, unnamed: int) -> None:
    """Where no age protects anything, uploads are found that no append was answered for, and nothing else.

    Beside them only objects of ledgers that nothing names, as the rebuild has reported, because it has deleted none.
    """
    session = WarmSession(SparkSettings(scratch=folder / "spark", master="local[2]", driver_memory="512m"))
    try:
        plan = planner(store, session, folder / "bulk")
        found = plan()
    finally:
        session.close()
    ledgers = [one for one in found if one.kind is FindingKind.ORPHAN_LEDGER]
    assert len(ledgers) <= unnamed, ledgers
    others = [one for one in found if one not in ledgers]
    expected = {FindingKind.ORPHAN_SEGMENT, FindingKind.ORPHAN_OFFLOAD, FindingKind.CONFIRMATION}
    assert {finding.kind for finding in others} <= expected, found
    for one in ledgers:
        for key in [found.key for found in store.log.objects.list(one.key)]:
            store.remove(key)
    for one in others:
        _remove(store, one)


def _remove(store: Damaged, finding: Finding) -> None:
    store.remove(finding.key, tiered=finding.kind is FindingKind.ORPHAN_OFFLOAD)


def _go_on(log: LogStore, topics: list[Topic], answers: Answers) -> None:
    """Ids are new ones, and duplicates are told."""
    assert all(log.topic_logs.roll(topic).opened > answers.opened for topic in topics)
    assert LedgerId(answers.opened) < log.catalog.records.read_state().next_ids.ledger
    known = max(int(one.split()[1]) for one in answers.entries.values() if one.startswith(b"2 "))
    entries = [NewEntry(payload=b"again", sequence_id=one) for one in range(1, known + 1)]
    again = log.topic_logs.append(topics[0], ProducedEntries(entries=entries, producer="p"))
    assert (again.count, again.duplicates) == (0, known)
