"""The way of records: flushed, ended by a function, replicated, defragmented, and raided once they cover nothing.

`judge` looks from outside, through manifests and blocks alone: wherever a process has died, the newest manifest names
blocks that can be read; in the end a rebuild would find every ledger as its row is, and none that ended durably.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any, Final, Self

from logstore.records.newest_versions import select_newest_versions
from logstore.records.record_kinds import RecordKind
from logstore.records.services.record_log import RecordLog
from tests.faults.main_job_operators import DELETION_POLICY, TEST_CAUSE, MainJobOperators
from tests.faults.simulated_world import LyingStore
from tests.faults.topic_plans import TopicPlan
from workflows.deletion.delete_ledgers import DeleteLedgers
from workflows.deletion.job_definitions import DELETE_LEDGERS, DeleteLedgersInput, ExplicitDetach
from workflows.records.defragment_records import DefragmentRecords
from workflows.records.end_records import EndRecords
from workflows.records.flush_records import FlushRecords
from workflows.records.job_definitions import (
    DEFRAGMENT_RECORDS,
    END_RECORDS,
    FLUSH_RECORDS,
    NOW,
    RAID_TOMBSTONES,
    REPLICATE_RECORDS,
    SWEEP_RECORDS,
    DefragmentRecordsInput,
    EndRecordsInput,
    FlushRecordsInput,
    RaidTombstonesInput,
    ReplicateRecordsInput,
    SweepRecordsInput,
)
from workflows.records.raid_tombstones import RaidTombstones
from workflows.records.replicate_records import ReplicateRecords
from workflows.records.sweep_records import SweepRecords

RECORD_LOG_PLANS: Final = (
    TopicPlan(name="persistent://shop/main/recorded", ledgers=4, acknowledged={"billing": 3}, components=True),
)
_DURABLY_ENDED_LEDGERS: Final = 3  # by a function and by an operation: all that retention would let go


class RecordLogOperators(MainJobOperators):
    """Programs whose catalog is recorded, and the workflows of its record log."""

    def record(self) -> Self:
        """All of it, and what must be so in the end."""
        return self.drive(
            self.write,
            self._begin,
            self._remove_first_ledger,
            self._end_ledgers_by_function,
            partial(self._flush, "ended"),
            partial(self._replicate, 0),
            partial(self._raid, 0, expected_tombstones=_DURABLY_ENDED_LEDGERS),
            self._defragment,
            partial(self._replicate, 1),
            partial(self._replicate, 2),  # a minute later: what one could not ship, the next one does
            partial(self._raid, 1, expected_tombstones=0),
            partial(self._flush, "raided"),
            partial(self._replicate, 3),
            self._check_record_logs,
        ).sweep()

    def again(self) -> Self:
        """All jobs once more: there is nothing left to do."""
        self._turn += 1
        raid, replicate = partial(self._raid, 0, expected_tombstones=0), partial(self._replicate, 0)
        return self.drive(
            partial(self._flush, "again"), self._defragment, raid, replicate, self._check_record_logs
        ).sweep()

    def _enter(self) -> None:
        super()._enter()
        with closing(sqlite3.connect(self.world.database)) as connection, connection:
            connection.execute("UPDATE record_log SET claim_until_us = 1")
        for store in (self.world.records, self.world.replica) if self.crashes else ():
            self.wrong += [f"after {self.crashes[-1]}: {sentence}" for sentence in _find_unreadable_blocks(store)]

    # -- what operators and schedules ask

    def _begin(self) -> None:
        """The flush that goes on for ever is started by the sweep that misses it."""
        request = SweepRecordsInput(watch_s=0, **TEST_CAUSE)
        self._start("sweep", SweepRecords, request, f"{SWEEP_RECORDS.id()}-1")
        self._work()

    def _remove_first_ledger(self) -> None:
        """The last copy of the first ledger is taken away, which ends it."""
        topic = self._topic(RECORD_LOG_PLANS[0])
        listed = self._client("once first", lambda: self._process.catalog.ledgers.list_ledgers(topic.topic_id))
        request = DeleteLedgersInput(
            batch_id="compound",
            topic_id=topic.topic_id,
            topic=topic.name,
            catalog_epoch=self._process.catalog.ledgers.catalog_epoch(),
            detach=ExplicitDetach(ledger_ids=[int(listed[0].ledger_id)], remove=["LEDGER"]),
            policy=DELETION_POLICY,
            **TEST_CAUSE,
        )
        self._start("operate", DeleteLedgers, request, DELETE_LEDGERS.id("compound"))
        self._work()

    def _end_ledgers_by_function(self) -> None:
        """A function ends two ledgers more, page by page; the tombstones are as old as can be."""
        request = EndRecordsInput(function="every", batch_id="every", page=2, policy=DELETION_POLICY, **TEST_CAUSE)
        self._start("end", EndRecords, request, END_RECORDS.id("every"))
        self._work()
        self._client("once bury", self._age_tombstones)

    def _age_tombstones(self) -> list[int]:
        with closing(sqlite3.connect(self.world.database)) as connection, connection:
            connection.execute("UPDATE tombstone SET at_us = 1")
            return [row[0] for row in connection.execute("SELECT id FROM tombstone")]

    def _flush(self, name: str) -> None:
        request = FlushRecordsInput(once=True, **TEST_CAUSE)
        self._start("flush", FlushRecords, request, f"{FLUSH_RECORDS.id(NOW)}-{name}")
        self._work()

    def _replicate(self, number: int) -> None:
        """As a schedule does."""
        workflow_id = f"{REPLICATE_RECORDS.id()}-{self._turn}-{number}"
        self._start("replicate", ReplicateRecords, ReplicateRecordsInput(scheduled=True, **TEST_CAUSE), workflow_id)
        self._work()

    def _defragment(self) -> None:
        """As a schedule does."""
        workflow_id = f"{DEFRAGMENT_RECORDS.id()}-{self._turn}"
        self._start("defragment", DefragmentRecords, DefragmentRecordsInput(scheduled=True, **TEST_CAUSE), workflow_id)
        self._work()

    def _raid(self, number: int, *, expected_tombstones: int) -> None:
        """As a schedule does: the tombstone is left while a block holds an older version of its ledger."""
        workflow_id = f"{RAID_TOMBSTONES.id()}-{self._turn}-{number}"
        self._start("raid", RaidTombstones, RaidTombstonesInput(scheduled=True, **TEST_CAUSE), workflow_id)
        self._work()
        self._once(f"{self._turn} raided {number}", partial(self._check_tombstone_count, expected_tombstones))

    def _check_tombstone_count(self, expected_tombstones: int) -> None:
        with closing(sqlite3.connect(self.world.database)) as connection:
            (tombstone_count,) = connection.execute("SELECT count(*) FROM tombstone").fetchone()
        if tombstone_count != expected_tombstones:
            self.wrong.append(f"expected {expected_tombstones} tombstones, found {tombstone_count}")

    # -- what must be so

    def _check_record_logs(self) -> None:
        self.wrong += [*_find_unreadable_blocks(self.world.records), *_find_unreadable_blocks(self.world.replica)]
        durably_ended = self.memory["once bury"]
        if len(durably_ended) != _DURABLY_ENDED_LEDGERS:
            self.wrong.append(f"expected {_DURABLY_ENDED_LEDGERS} ledgers that ended durably, found {durably_ended}")
        with closing(sqlite3.connect(self.world.database)) as connection:
            catalog_ledgers = set(connection.execute("SELECT ledger_id, state, place FROM ledger"))
        for name, store in (("record log", self.world.records), ("replica", self.world.replica)):
            recorded_ledgers = _read_recorded_ledgers(store)
            if returned := sorted({row[0] for row in recorded_ledgers}.intersection(durably_ended)):
                self.wrong.append(f"{name}: ledgers {returned} ended durably, and would return")
            if not catalog_ledgers <= recorded_ledgers:
                self.wrong.append(
                    f"{name}: expected {sorted(catalog_ledgers, key=str)}, found {sorted(recorded_ledgers, key=str)}"
                )


def _find_unreadable_blocks(store: LyingStore) -> Iterator[str]:
    """Blocks that the newest manifest names and that cannot be read."""
    log = RecordLog(store)
    manifest = log.read_newest_manifest()
    for block in manifest.blocks if manifest else ():
        try:
            log.read_block(block)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is wrong
            yield f"{block.key}: {error!r}"


def _read_recorded_ledgers(store: LyingStore) -> set[tuple[Any, ...]]:
    """Id, state and place of every ledger that a rebuild would find."""
    log = RecordLog(store)
    manifest = log.read_newest_manifest()
    blocks = [block for block in (manifest.blocks if manifest else ()) if block.kind is RecordKind.LEDGER]
    if not blocks:
        return set()
    newest_versions = select_newest_versions([log.read_block(block) for block in blocks])
    return {(row["id"], row["state"], row["place"]) for row in newest_versions.to_pylist() if not row["tombstone"]}
