"""The way of records: flushed, replicated, defragmented, and a tombstone that is raided once it covers nothing.

`judge` looks from outside, through manifests and blocks alone: wherever a process has died, the newest manifest names
blocks that can be read; in the end a rebuild would find every ledger as its row is, and none that ended durably.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any, Final, Self

from logstore.records.kinds import RecordKind
from logstore.records.services.record_log import RecordLog
from logstore.records.winners import winners
from tests.faults.operators import CAUSE, Operators
from tests.faults.scene import TopicPlan
from tests.faults.world import LyingStore
from workflows.records.defragment_records import DefragmentRecords
from workflows.records.flush_records import FlushRecords
from workflows.records.raid_tombstones import RaidTombstones
from workflows.records.replicate_records import ReplicateRecords
from workflows.records.sweep_records import SweepRecords
from workflows.records.values import (
    DEFRAGMENT_RECORDS,
    FLUSH_RECORDS,
    NOW,
    RAID_TOMBSTONES,
    REPLICATE_RECORDS,
    SWEEP_RECORDS,
    DefragmentRecordsInput,
    FlushRecordsInput,
    RaidTombstonesInput,
    ReplicateRecordsInput,
    SweepRecordsInput,
)

RECORDED: Final = (
    TopicPlan(name="persistent://shop/main/recorded", ledgers=3, acknowledged={"billing": 2}, components=True),
)


class Recording(Operators):
    """Programs whose catalog is recorded, and the workflows of its record log."""

    def record(self) -> Self:
        """All of it, and what must be so in the end."""
        return self.drive(
            self.write,
            self._begin,
            self._end_one_durably,
            partial(self._flush, "ended"),
            partial(self._replicate, 0),
            partial(self._raid, 0, left=1),
            self._defragment,
            partial(self._replicate, 1),
            partial(self._raid, 1, left=0),
            partial(self._flush, "raided"),
            partial(self._replicate, 2),
            self._judge_all,
        ).sweep()

    def again(self) -> Self:
        """All jobs once more: there is nothing left to do."""
        self._turn += 1
        raid, replicate = partial(self._raid, 0, left=0), partial(self._replicate, 0)
        return self.drive(partial(self._flush, "again"), self._defragment, raid, replicate, self._judge_all).sweep()

    def _enter(self) -> None:
        super()._enter()
        with closing(sqlite3.connect(self.world.database)) as connection, connection:
            connection.execute("UPDATE record_log SET claim_until_us = 1")
        for store in (self.world.records, self.world.replica) if self.crashes else ():
            self.wrong += [f"after {self.crashes[-1]}: {it}" for it in _unreadable(store)]

    # -- what operators and schedules ask

    def _begin(self) -> None:
        """The flush that goes on for ever is started by the sweep that misses it."""
        request = SweepRecordsInput(watch_s=0, **CAUSE)
        self._start("sweep", SweepRecords, request, f"{SWEEP_RECORDS.id()}-1")
        self._work()

    def _end_one_durably(self) -> None:
        """Retention lets two ledgers go; of one of them a tombstone is left, as old as can be."""
        self.trim_each("trim", RECORDED)
        self._client("once bury", self._bury)

    def _bury(self) -> int:
        with closing(sqlite3.connect(self.world.database)) as connection, connection:
            (ledger_id,) = connection.execute("SELECT min(ledger_id) FROM pending_deletion").fetchone()
            row = "'ledger', ?, 1, 1, 'MANAGED_LEDGER', 2, 1, 1"
            columns = "kind, id, topic_id, list_id, component, generation, epoch, at_us"
            connection.execute(f"INSERT OR IGNORE INTO tombstone ({columns}) VALUES ({row})", (ledger_id,))
        return int(ledger_id)

    def _flush(self, name: str) -> None:
        request = FlushRecordsInput(once=True, **CAUSE)
        self._start("flush", FlushRecords, request, f"{FLUSH_RECORDS.id(NOW)}-{name}")
        self._work()

    def _replicate(self, number: int) -> None:
        """As a schedule does."""
        workflow_id = f"{REPLICATE_RECORDS.id()}-{self._turn}-{number}"
        self._start("replicate", ReplicateRecords, ReplicateRecordsInput(scheduled=True, **CAUSE), workflow_id)
        self._work()

    def _defragment(self) -> None:
        """As a schedule does."""
        workflow_id = f"{DEFRAGMENT_RECORDS.id()}-{self._turn}"
        self._start("defragment", DefragmentRecords, DefragmentRecordsInput(scheduled=True, **CAUSE), workflow_id)
        self._work()

    def _raid(self, number: int, *, left: int) -> None:
        """As a schedule does: the tombstone is left while a block holds an older version of its ledger."""
        workflow_id = f"{RAID_TOMBSTONES.id()}-{self._turn}-{number}"
        self._start("raid", RaidTombstones, RaidTombstonesInput(scheduled=True, **CAUSE), workflow_id)
        self._work()
        self._once(f"{self._turn} raided {number}", partial(self._require_left, left))

    def _require_left(self, left: int) -> None:
        with closing(sqlite3.connect(self.world.database)) as connection:
            (found,) = connection.execute("SELECT count(*) FROM tombstone").fetchone()
        if found != left:
            self.wrong.append(f"expected {left} tombstones, found {found}")

    # -- what must be so

    def _judge_all(self) -> None:
        self.wrong += [*_unreadable(self.world.records), *_unreadable(self.world.replica)]
        buried = self.memory["once bury"]
        with closing(sqlite3.connect(self.world.database)) as connection:
            rows = set(connection.execute("SELECT ledger_id, state, place FROM ledger"))
        for name, store in (("record log", self.world.records), ("replica", self.world.replica)):
            found = _ledgers(store)
            if buried in {row[0] for row in found}:
                self.wrong.append(f"{name}: ledger {buried} ended durably, and would return")
            if not rows <= found:
                self.wrong.append(f"{name}: expected {sorted(rows, key=str)}, found {sorted(found, key=str)}")


def _unreadable(store: LyingStore) -> Iterator[str]:
    """Blocks that the newest manifest names and that cannot be read."""
    log = RecordLog(store)
    manifest = log.newest()
    for block in manifest.blocks if manifest else ():
        try:
            log.read_block(block)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is wrong
            yield f"{block.key}: {error!r}"


def _ledgers(store: LyingStore) -> set[tuple[Any, ...]]:
    """Id, state and place of every ledger that a rebuild would find."""
    log = RecordLog(store)
    manifest = log.newest()
    blocks = [one for one in (manifest.blocks if manifest else ()) if one.kind is RecordKind.LEDGER]
    if not blocks:
        return set()
    found = winners([log.read_block(one) for one in blocks])
    return {(row["id"], row["state"], row["place"]) for row in found.to_pylist() if not row["tombstone"]}
