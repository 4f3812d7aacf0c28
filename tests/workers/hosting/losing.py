"""Programs that write until their database is gone, and what they were told until then."""

import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg

from activities.deletion.deletion_pace import DeletionPace
from activities.deletion.phase_two_steps import flush_and_examine_intents, remove_examined_copies
from logstore.cursors.cursor_state import CursorState
from logstore.errors import SextonError
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.services.batched_appends import AppendResult
from logstore.ports.catalog.deletion import AuditCause, Claim
from logstore.ports.catalog.log import BeginTransactionResult, BeginTransactionWrite, EndTransactionWrite, Topic
from logstore.positions import LedgerId, Position, TopicId
from logstore.records.services.flusher import SharedFlushes
from workers.assembly.log_store import LogStore
from workers.assembly.log_store_from_settings import open_log_store
from workers.settings import Settings

SUBSCRIPTION: Final = "s"
CLAIM: Final = Claim(workflow_id="w", run_id="r", ttl_s=60)
CAUSE: Final = AuditCause(actor="a", reason="r", workflow_id="w")
_FAR_MS: Final = 4_000_000_000_000
_START: Final = Position(LedgerId(-1), -1)


@dataclass
class Answers:
    """What writers were told; threads share it."""

    entries: dict[tuple[TopicId, Position], bytes] = field(default_factory=dict)
    inside: dict[tuple[TopicId, Position], bytes] = field(default_factory=dict)  # those of transactions
    committed: set[bytes] = field(default_factory=set)  # payloads of transactions whose every marker was stored
    undone: set[bytes] = field(default_factory=set)  # of those that were aborted
    asked: dict[TopicId, Position] = field(default_factory=dict)  # up to which entries were to be acknowledged
    acknowledged: dict[TopicId, Position] = field(default_factory=dict)  # up to which they were
    flushed: dict[TopicId, Position] = field(default_factory=dict)  # up to which they were before the last flush
    done: dict[str, int] = field(default_factory=dict)  # how often each kind of work was answered
    opened: int = 0  # the highest ledger id that was seen
    ending: threading.Event = field(default_factory=threading.Event)  # the database goes: any error is to be borne
    lost: threading.Event = field(default_factory=threading.Event)  # and is gone: nobody tries any more
    faults: list[BaseException] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def stored(self, topic: Topic, produced: ProducedEntries, done: AppendResult) -> None:
        """An append was answered."""
        into = self.entries if produced.txn is None else self.inside
        with self.changed:
            if done.first is not None:
                for at, entry in enumerate(produced.entries[done.duplicates :]):
                    position = Position(done.first.ledger_id, done.first.entry_id + at)
                    into[topic.topic_id, position] = entry.payload
                self.opened = max(self.opened, done.first.ledger_id)
            self.changed.notify_all()

    def did(self, what: str) -> None:
        """Another kind of work was answered."""
        with self.changed:
            self.done[what] = self.done.get(what, 0) + 1
            self.changed.notify_all()

    def await_more(self, entries: int, *, each: int, of: tuple[str, ...]) -> None:
        """So many entries more than there are now, and so often each of these kinds of work more."""
        with self.changed:
            wanted, often = len(self.entries) + entries, {name: self.done.get(name, 0) + each for name in of}

            def enough() -> bool:
                done = len(self.entries) >= wanted and all(self.done.get(name, 0) >= n for name, n in often.items())
                return done or bool(self.faults)

            assert self.changed.wait_for(enough, timeout=240), self.done
            assert not self.faults, self.faults


class Writers:
    """Each thread is a process of its own, with hints and a group commit that no other one shares."""

    def __init__(self, settings: Settings, topics: list[Topic], consumed: Topic, answers: Answers) -> None:
        """Write to `topics`; what is written to `consumed` is acknowledged, and goes."""
        self._settings, self._topics, self._consumed, self._answers = settings, topics, consumed, answers
        work = (
            self._plain,
            self._plain,
            self._numbered,
            self._transactions,
            self._rolls,
            self._consumes,
            self._trims,
            self._offloads,
            self._seals,
        )
        self._threads = [threading.Thread(target=self._run, args=(one, at)) for at, one in enumerate(work)]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """They end by themselves once the database is gone."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._answers.ending.set()
            self._answers.lost.set()
            for thread in self._threads:
                thread.join(120)
                assert not thread.is_alive()

    def _run(self, work: Callable[[LogStore, int, int, random.Random], None], number: int) -> None:
        dice = random.Random(number)
        with open_log_store(self._settings) as log:
            turn = 0
            while not self._answers.lost.is_set():
                turn += 1
                try:
                    work(log, number, turn, dice)
                except SextonError:
                    continue  # not answered: it may be there, or not
                except Exception as error:  # noqa: BLE001 - as a database is that has no tables any more
                    if not self._answers.ending.is_set():
                        self._answers.faults.append(error)
                        return

    def _append(self, log: LogStore, topic: Topic, produced: ProducedEntries) -> None:
        self._answers.stored(topic, produced, log.topic_logs.append(topic, produced))

    def _plain(self, log: LogStore, number: int, turn: int, dice: random.Random) -> None:
        late = _FAR_MS if turn % 7 == 0 else None
        entries = [
            NewEntry(payload=f"{number} {turn} {at}".encode(), deliver_at_ms=late) for at in range(dice.randint(1, 4))
        ]
        self._append(log, dice.choice([*self._topics, self._consumed]), ProducedEntries(entries=entries))

    def _numbered(self, log: LogStore, number: int, turn: int, dice: random.Random) -> None:
        entries = [NewEntry(payload=f"{number} {turn}".encode(), sequence_id=turn)]
        self._append(log, self._topics[0], ProducedEntries(entries=entries, producer="p"))

    def _transactions(self, log: LogStore, number: int, turn: int, dice: random.Random) -> None:
        (begun,) = log.catalog.commits.commit_writes([BeginTransactionWrite(tc_id=2, timeout_s=3_600)])
        assert isinstance(begun, BeginTransactionResult)
        payload, commit = f"txn {turn}".encode(), turn % 3 > 0
        for topic in self._topics:
            self._append(log, topic, ProducedEntries(entries=[NewEntry(payload=payload)], txn=begun.txn))
        log.catalog.commits.commit_writes([EndTransactionWrite(txn=begun.txn, commit=commit)])
        batch = log.catalog.transactions.claim_decided_transactions(
            Claim(workflow_id="transaction-coordinator/2", run_id="r", ttl_s=60), limit=10
        )
        if not log.broadcasts.broadcast_batch(batch).failures:  # answered once every marker is stored
            (self._answers.committed if commit else self._answers.undone).add(payload)
            self._answers.did("transaction")

    def _rolls(self, log: LogStore, number: int, turn: int, dice: random.Random) -> None:
        self._pause(20)
        rolled = log.topic_logs.roll(dice.choice([*self._topics, self._consumed]))
        self._answers.opened = max(self._answers.opened, rolled.opened)
        self._answers.did("roll")

    def _consumes(self, log: LogStore, number: int, turn: int, dice: random.Random) -> None:
        self._pause(10)
        topic_id = self._consumed.topic_id
        known = sorted(at for of, at in list(self._answers.entries) if of == topic_id)
        if not known:
            return
        self._answers.asked[topic_id] = known[-1]
        releases = log.subscriptions.get(topic_id, SUBSCRIPTION).releases  # messages before it have a delivery time
        log.subscriptions.acknowledge(topic_id, SUBSCRIPTION, up_to=known[-1], releases=releases)
        self._answers.acknowledged[topic_id] = known[-1]
        self._answers.did("acknowledgement")

    def _trims(self, log: LogStore, number: int, turn: int, dice: random.Random) -> None:
        """What is consumed is detached, and its objects go."""
        self._pause(20)
        log.topic_logs.roll(self._consumed)
        batch = f"trim-{turn}"
        log.catalog.phase_one.detach_ledgers(
            self._consumed.topic_id, None, force=False, batch_id=batch, claim=CLAIM, cause=CAUSE
        )
        if phase_two(log, batch):
            self._answers.did("trim")

    def _offloads(self, log: LogStore, number: int, turn: int, dice: random.Random) -> None:
        """A closed ledger gets a tiered copy; in every other turn the primary ones go."""
        self._pause(20)
        topic_id, batch = self._topics[turn % 2].topic_id, f"offload-{turn}"
        for ledger_id in log.catalog.offloads.list_offload_candidates(topic_id, None, after=LedgerId(-1), limit=1):
            uuid = str(uuid4())
            if log.offloader.upload_and_prove(ledger_id, uuid, timeout_s=600).evidence:
                log.catalog.offloads.publish_tiered_copy(ledger_id, uuid)
                self._answers.did("offload")
        there = (
            log.catalog.offloads.list_removable_primaries(topic_id, None, after=LedgerId(-1), limit=10)
            if turn % 4 > 1
            else []
        )
        proved = {one.statement.ledger_id: one.context["uuid"] for one in there}
        if proved:
            log.catalog.offloads.detach_primary_copies(
                topic_id, None, proved_uuid_by_ledger=proved, batch_id=batch, claim=CLAIM, cause=CAUSE
            )
            phase_two(log, batch)

    def _seals(self, log: LogStore, number: int, turn: int, dice: random.Random) -> None:
        """Delayed messages get buckets."""
        self._pause(30)
        log.delayed.sealer.drop_buckets_and_seal(self._topics[turn % 2].topic_id, force=True)
        self._answers.did("seal")

    def _pause(self, entries: int) -> None:
        """Until so many entries more were answered."""
        before = len(self._answers.entries)
        with self._answers.changed:
            self._answers.changed.wait_for(
                lambda: self._answers.lost.is_set() or len(self._answers.entries) > before + entries, timeout=5
            )


class _Unheard:
    """Heartbeats that nobody hears."""

    def count_examined(self) -> None: ...

    def count_deleted(self, objects: int) -> None: ...


def phase_two(log: LogStore, batch: str) -> int:
    """How many copies of the batch went, as a chunk of phase two lets them go."""
    heartbeats: Any = _Unheard()
    flushes = SharedFlushes(log.catalog.records, log.records.flusher)
    went = 0
    for part in log.catalog.deletions.list_unfinished_ranges(batch, after=0, rows=100, limit=10):
        found = flush_and_examine_intents(
            log.catalog.deletions.list_intents_in_range(batch, part), log.storages, flushes, heartbeats
        )
        ended, _ = remove_examined_copies(found, log.storages, heartbeats, DeletionPace())
        went += len(log.catalog.deletions.record_outcomes(ended, holder=batch))
    return went


def flush(settings: Settings, answers: Answers) -> None:
    """One manifest more, cursors included."""
    before = dict(answers.acknowledged)
    with open_log_store(settings) as log:
        log.records.flusher.flush(cursors=True)
    answers.flushed = before


def destroy(url: str, answers: Answers, *, copy: Path | None = None) -> None:
    """Take the database away from those that write: what is answered is answered, and nothing is any more.

    A `copy` of an SQLite database is as it was at its end: it knows every manifest that was published.
    """
    answers.ending.set()
    if not url.startswith("sqlite"):
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as server:
            others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            while True:
                server.execute(f"SELECT pg_terminate_backend(pid) {others}".encode())
                with suppress(psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable):
                    server.execute(b"SET lock_timeout = '1s'; DROP SCHEMA public CASCADE; CREATE SCHEMA public")
                    return
    path = url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        if copy is not None:
            with closing(sqlite3.connect(path)) as reader, closing(sqlite3.connect(copy)) as kept:
                reader.backup(kept)
        named = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        for (name,) in connection.execute(named).fetchall():
            connection.execute(f'DROP TABLE "{name}"')
        connection.execute("COMMIT")


def reach(state: CursorState) -> Position:
    """Up to which entry all is acknowledged."""
    return max(state.mark_delete, _START)
