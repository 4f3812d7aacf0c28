"""A catalog that is lost while writers are at work on real servers: all that was answered is there again.

A flush here is a copy of the database, which is also what a backup restores; the record log itself is not asked.
"""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from infra.catalog import SqlCatalog
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import SextonError
from logstore.identity.markers import Role
from logstore.identity.services.own_stores import OwnStores
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.services.append import AppendResult
from logstore.offload.locations import CopyLocation
from logstore.ports.catalog import BeginTransaction, Begun, Claim, EndTransaction, Topic
from logstore.ports.objects import Buckets, OwnedStore
from logstore.positions import LedgerId, Position, TopicId
from tests.infra.catalog.records.adoption import LostDatabase
from workers.assembly.adapters import open_log
from workers.assembly.buckets import own_buckets
from workers.assembly.log import LogStore
from workers.settings import Settings

pytestmark = pytest.mark.external_service

_FLUSHES, _BETWEEN, _BEHIND = 3, 30, 60  # answers between two flushes, and behind the last


@dataclass
class _Answers:
    """What writers were told; threads share it."""

    entries: dict[tuple[TopicId, Position], bytes] = field(default_factory=dict)
    committed: set[bytes] = field(default_factory=set)  # payloads of transactions whose every marker was stored
    undone: set[bytes] = field(default_factory=set)  # of those that were aborted
    opened: int = 0  # the highest ledger id that was seen
    changed: threading.Condition = field(default_factory=threading.Condition)

    def stored(self, topic: Topic, payloads: list[bytes], done: AppendResult) -> None:
        with self.changed:
            if done.first is not None:
                for at, payload in enumerate(payloads[done.duplicates :]):
                    position = Position(done.first.ledger_id, done.first.entry_id + at)
                    self.entries[topic.topic_id, position] = payload
                self.opened = max(self.opened, done.first.ledger_id)
            self.changed.notify_all()

    def await_more(self, count: int) -> None:
        """So many answers more than there are now."""
        with self.changed:
            wanted = len(self.entries) + count
            assert self.changed.wait_for(lambda: len(self.entries) >= wanted, timeout=120)


class _Writers:
    """Each thread is a process of its own, with hints and a group commit that no other one shares."""

    def __init__(self, settings: Settings, topics: list[Topic], answers: _Answers) -> None:
        self._settings, self._topics, self._answers = settings, topics, answers
        self._stop = threading.Event()
        work = (self._plain, self._plain, self._numbered, self._transactions, self._rolls)
        self._threads = [threading.Thread(target=self._run, args=(one, at)) for at, one in enumerate(work)]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            with self._answers.changed:
                self._answers.changed.notify_all()
            for thread in self._threads:
                thread.join(60)

    def _run(self, work: Callable[[LogStore, int, int, random.Random], None], number: int) -> None:
        dice = random.Random(number)
        with open_log(self._settings) as log:
            turn = 0
            while not self._stop.is_set():
                turn += 1
                try:
                    work(log, number, turn, dice)
                except SextonError:
                    continue  # not answered: it may be there, or not

    def _append(self, log: LogStore, topic: Topic, produced: ProducedEntries) -> None:
        done = log.managed.append(topic, produced)
        if produced.txn is None:
            self._answers.stored(topic, [one.payload for one in produced.entries], done)

    def _plain(self, log: LogStore, number: int, turn: int, dice: random.Random) -> None:
        late = 4_000_000_000_000 if turn % 7 == 0 else None
        entries = [
            NewEntry(payload=f"{number} {turn} {at}".encode(), deliver_at_ms=late) for at in range(dice.randint(1, 4))
        ]
        self._append(log, dice.choice(self._topics), ProducedEntries(entries=entries))

    def _numbered(self, log: LogStore, number: int, turn: int, dice: random.Random) -> None:
        entries = [NewEntry(payload=f"{number} {turn}".encode(), sequence_id=turn)]
        self._append(log, self._topics[0], ProducedEntries(entries=entries, producer="p"))

    def _transactions(self, log: LogStore, number: int, turn: int, dice: random.Random) -> None:
        (begun,) = log.catalog.commits.commit([BeginTransaction(tc_id=2, timeout_s=3_600)])
        assert isinstance(begun, Begun)
        payload, commit = f"txn {turn}".encode(), turn % 3 > 0
        for topic in self._topics:
            self._append(log, topic, ProducedEntries(entries=[NewEntry(payload=payload)], txn=begun.txn))
        log.catalog.commits.commit([EndTransaction(txn=begun.txn, commit=commit)])
        claim = Claim(workflow_id="transaction-coordinator/2", run_id="r", ttl_s=60)
        batch = log.catalog.transactions.claim(claim, limit=10)
        if not log.broadcasts.settle(batch).failures:  # answered once every marker is stored
            (self._answers.committed if commit else self._answers.undone).add(payload)

    def _rolls(self, log: LogStore, number: int, turn: int, dice: random.Random) -> None:
        before = len(self._answers.entries)
        with self._answers.changed:
            self._answers.changed.wait_for(lambda: self._stop.is_set() or len(self._answers.entries) > before + 20)
        rolled = log.managed.roll(dice.choice(self._topics))
        self._answers.opened = max(self._answers.opened, rolled.opened)


def _buckets(settings: Settings, catalog: SqlCatalog) -> tuple[OwnedStore, Buckets]:
    own = own_buckets(settings, OwnStores(catalog.identities))
    primary = own(Role.PRIMARY, CopyLocation(settings.primary_bucket))
    return primary, lambda location: own(Role.TIERED, location)


def test_all_that_was_answered_is_there_again(settings: Settings) -> None:
    """Appends where they were answered, commits as a whole, sequence ids, and no id that is given out twice."""
    answers = _Answers()
    lost = LostDatabase(
        Path(settings.database_url.removeprefix("sqlite:///")), lambda catalog: _buckets(settings, catalog)
    )
    with open_log(settings) as log:
        topics = [log.catalog.topics.create(f"persistent://a/b/{name}", RetentionPolicy()) for name in "xy"]
    with _Writers(settings, topics, answers).at_work():
        for _ in range(_FLUSHES):
            answers.await_more(_BETWEEN)
            lost.flush()
        answers.await_more(_BEHIND)
    lost.lose()
    report = lost.adopt()
    assert report.adopted_segments > 0
    assert (report.missing_data, report.revived) == (0, 0)
    with open_log(settings) as log:
        claim = Claim(workflow_id="transaction-coordinator/2", run_id="again", ttl_s=60)
        log.catalog.transactions.expire(2, limit=1_000)
        while batch := log.catalog.transactions.claim(claim, limit=100):
            assert not log.broadcasts.settle(batch).failures
        for topic in topics:
            found = {one.position: one.payload for one in log.managed.scan(topic)}
            mine = {at: payload for (topic_id, at), payload in answers.entries.items() if topic_id == topic.topic_id}
            assert {at: found.get(at) for at in mine} == mine
            assert answers.committed <= set(found.values())
            assert not answers.undone & set(found.values())
            assert log.managed.roll(topic).opened > answers.opened
        known = max(int(one.split()[1]) for one in answers.entries.values() if one.startswith(b"2 "))
        entries = [NewEntry(payload=b"again", sequence_id=one) for one in range(1, known + 1)]
        again = log.managed.append(topics[0], ProducedEntries(entries=entries, producer="p"))
        assert (again.count, again.duplicates) == (0, known)
        assert LedgerId(answers.opened) < log.catalog.records.state().next_ids.ledger
