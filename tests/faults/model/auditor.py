"""An auditor that trusts no rule of Sexton's: raw rows of the fakes, keys and digests worked out on its own.

It looks after every step. `Moment` is what is; `wrong_now` says what no moment may show (promises 1, 2, 3 and 8),
`wrong_since` what no step may do.
"""

import hashlib
import io
import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import pyarrow.parquet as pq
from pyroaring import BitMap

from logstore.deletion import DeletionIntent
from logstore.ledgers import LedgerStatement
from logstore.ports.catalog import Ledger, Segment, StoredCursor
from logstore.positions import LedgerId
from tests.faults.model.house import FORGOTTEN_S, House

_KEY: Final = re.compile(r"ledgers/(?P<shard>[0-9a-f]{2})/(?P<id>[0-9a-f]{16})/(?P<name>.+)")

Place = tuple[int, int]
"""A ledger and an entry."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Storage and catalog at one moment."""

    objects: Mapping[str, bytes]
    planted: Mapping[str, bytes]
    late: frozenset[str]
    lists: Mapping[int, tuple[int, ...]]  # by topic
    ledgers: Mapping[int, Ledger]
    statements: Mapping[int, LedgerStatement]
    segments: Mapping[int, tuple[Segment, ...]]
    copies: frozenset[tuple[int, str]]
    intents: Mapping[int, DeletionIntent]
    memory_us: Mapping[int, int]  # for how long an intent that ended is over
    forged: frozenset[int]  # intents that nobody's detach filed
    cursors: Mapping[tuple[int, str], StoredCursor]
    schemas: Mapping[int, tuple[int, ...]]  # ledgers by topic, ascending by version

    @property
    def stored(self) -> dict[int, list[str]]:
        """Names of Sexton's own objects below each ledger's prefix."""
        found: dict[int, list[str]] = {}
        for key in sorted(self.objects.keys() - self.planted.keys() - self.late):
            at = _KEY.fullmatch(key)
            assert at, f"Sexton wrote a key that is no ledger's: {key}"
            ledger_id = int(at["id"], 16)
            assert int(at["shard"], 16) == ledger_id % 256, f"{key} stands in the wrong shard"
            found.setdefault(ledger_id, []).append(at["name"])
        return found

    @property
    def listed(self) -> set[int]:
        """Ids of all lists, of every component."""
        data = {one for ids in self.lists.values() for one in ids}
        return data | {one for one, row in self.ledgers.items() if _is_component(row) and row.state.value == "CLOSED"}

    def intended(self, *states: str) -> set[int]:
        """Ledgers whose primary copy has an intent in one of the states."""
        rows = [row for row in self.intents.values() if row.row_id not in self.forged]
        return {row.ledger_id for row in rows if row.copy.value == "LEDGER" and row.state.value in states}

    def numbers(self, ledger_id: int) -> list[int]:
        """Sequence ids of a ledger's entries, in order, read from its objects; empty where one is lost."""
        found: list[int] = []
        for row in self.segments.get(ledger_id, ()):
            body = self.objects.get(f"{_prefix(ledger_id)}{row.number:08d}.parquet")
            found += [] if body is None else _numbers(body)
        return found

    def covered(self, topic: int, name: str) -> frozenset[Place]:
        """Listed entries that the subscription has acknowledged."""
        cursor = self.cursors[topic, name]
        mark = (int(cursor.state.mark_delete.ledger_id), cursor.state.mark_delete.entry_id)
        single = {(int(one), entry) for one, bits in cursor.state.acknowledged.items() for entry in bits}
        single |= self._snapshot(cursor.snapshot_ledger)
        return frozenset(place for place in self.entries(topic) if place <= mark or place in single)

    def _snapshot(self, ledger_id: int | None) -> frozenset[Place]:
        """What a cursor ledger holds."""
        body = self.objects.get(f"{_prefix(ledger_id)}{0:08d}.parquet") if ledger_id is not None else None
        return frozenset() if body is None else _unpacked(body)

    def entries(self, topic: int) -> list[Place]:
        """Every listed entry of the topic."""
        return [(one, entry) for one in self.lists[topic] for entry in range(self.ledgers[one].entries)]


def look(house: House, forged: frozenset[int]) -> Moment:
    """Everything as it is now."""
    catalog = house.catalog
    return Moment(
        objects=house.store.bodies,
        planted=dict(house.store.planted),
        late=frozenset(house.store.late),
        lists={topic: tuple(ids) for topic, ids in catalog.lists.items()},
        ledgers={int(one): row for one, row in catalog.ledger_rows.items()},
        statements={int(one): statement for one, statement in catalog.statements.items()},
        segments={one: tuple(rows) for one, rows in catalog.segment_rows.items()},
        copies=frozenset((one, kind.value) for one, copies in catalog.copies.items() for kind in copies),
        intents=dict(catalog.intent_rows),
        memory_us={row_id: catalog.now_us - ended_us for row_id, ended_us in catalog.ended_us.items()},
        forged=forged,
        cursors={(int(topic), name): row for (topic, name), row in catalog.cursor_rows.items()},
        schemas={int(topic): tuple(one.ledger_id for one in rows) for topic, rows in catalog.schema_rows.items()},
    )


def _prefix(ledger_id: int) -> str:
    return f"ledgers/{ledger_id % 256:02x}/{ledger_id:016x}/"


@lru_cache(maxsize=4096)
def _numbers(body: bytes) -> list[int]:
    rows = pq.read_table(io.BytesIO(body), columns=["sequence_id", "payload"]).to_pylist()
    assert all(row["payload"] == str(row["sequence_id"]).encode() for row in rows), "an entry reads differently"
    return [row["sequence_id"] for row in rows]


@lru_cache(maxsize=4096)
def _unpacked(body: bytes) -> frozenset[Place]:
    """Bitmaps ascending by ledger: id (int64), length (uint32), portable roaring."""
    (row,) = pq.read_table(io.BytesIO(body), columns=["payload"]).to_pylist()
    packed, found, at = row["payload"], set(), 0
    while at < len(packed):
        ledger_id, length = struct.unpack_from("<qI", packed, at)
        at += 12 + length
        found |= {(ledger_id, entry) for entry in BitMap.deserialize(packed[at - length : at])}
    return frozenset(found)


def _is_component(row: Ledger) -> bool:
    return row.component.value != "MANAGED_LEDGER"


def _meta_name(statement: LedgerStatement) -> str:
    owner = statement.owner
    told = [
        owner.application,
        owner.component.value,
        owner.topic_id,
        owner.topic,
        sorted(map(list, owner.keys.items())),
    ]
    return hashlib.sha256(json.dumps(told, separators=(",", ":")).encode()).hexdigest()[:16] + ".meta.json"


def wrong_now(seen: Moment) -> Iterator[str]:
    """What no crash may leave behind, not even for a moment (apache/pulsar#13526)."""
    unfinished = seen.intended("PENDING", "DEAD_LETTERED")
    for ledger_id, names in seen.stored.items():
        if ledger_id not in seen.ledgers and ledger_id not in unfinished:
            yield f"ledger {ledger_id} is forgotten: nothing names it, and {names} are stored"
        if not any(name.endswith(".meta.json") for name in names):
            yield f"ledger {ledger_id}: {names} are stored without a meta.json"
    for key, body in seen.planted.items():
        if seen.objects.get(key) != body:
            yield f"{key} belongs to another application and was touched"
    for ledger_id, row in sorted(seen.ledgers.items()):
        yield from _incomplete(seen, ledger_id, row)
    yield from _unnamed(seen)
    yield from _contradicted(seen)


def _contradicted(seen: Moment) -> Iterator[str]:
    """What an intent says is not what is so."""
    for ledger_id in sorted(
        {one for one, kind in seen.copies if kind == "LEDGER"} & seen.intended("PENDING", "DELETED")
    ):
        yield f"ledger {ledger_id} has a copy and a deletion intent at once"
    for ledger_id in sorted(seen.intended("DELETED") & seen.stored.keys()):
        yield f"ledger {ledger_id} is said to be deleted, and {seen.stored[ledger_id]} are stored"
    for intent in seen.intents.values():
        if intent.state.value == "DEAD_LETTERED" and not intent.last_error:
            yield f"ledger {intent.ledger_id} is a dead letter without a reason"


def _incomplete(seen: Moment, ledger_id: int, row: Ledger) -> Iterator[str]:
    """Referenced, and not all there."""
    if ledger_id not in seen.listed:
        if row.state.value != "CREATING":
            yield f"ledger {ledger_id} is {row.state.value} and in no list"
        return
    if f"{_prefix(ledger_id)}{_meta_name(seen.statements[ledger_id])}" not in seen.objects:
        yield f"ledger {ledger_id} is listed without its own statement in storage"
    reached = 0
    for segment in seen.segments.get(ledger_id, ()):
        body = seen.objects.get(f"{_prefix(ledger_id)}{segment.number:08d}.parquet")
        if body is None or len(body) != segment.size_bytes:
            yield f"ledger {ledger_id}: segment {segment.number} is registered, and lost or of another size"
        if segment.first_entry != reached:
            yield f"ledger {ledger_id}: segment {segment.number} begins at {segment.first_entry}, expected {reached}"
        reached = segment.first_entry + segment.entries
    if reached != row.entries:
        yield f"ledger {ledger_id}: its row says {row.entries} entries, its segments {reached}"


def _unnamed(seen: Moment) -> Iterator[str]:
    """Every ledger of a component is named by what it belongs to, and the other way round (apache/pulsar#982)."""
    named = [one.snapshot_ledger for one in seen.cursors.values() if one.snapshot_ledger is not None]
    named += [LedgerId(one) for ids in seen.schemas.values() for one in ids]
    listed = sorted(one for one in seen.listed if _is_component(seen.ledgers[one]))
    if sorted(named) != listed:
        yield f"ledgers {listed} of components are listed, and {sorted(named)} are named"


@dataclass(frozen=True, kw_only=True)
class Licence:
    """What the step that was made may do, beyond what every step may."""

    sought: tuple[int, str] | None = None  # a subscription that may go back
    redriven: bool = False  # dead letters may be tried again


def wrong_since(before: Moment, now: Moment, licence: Licence, detached: set[int]) -> Iterator[str]:
    """What a step may not do, whatever it was."""
    for topic, ids in before.lists.items():
        left = [one for one in ids if one not in now.lists.get(topic, ())]
        if set(left) - detached:
            yield f"ledgers {sorted(set(left) - detached)} left their list, and no detach took them"
        kept = [one for one in ids if one not in left]
        if list(now.lists.get(topic, ()))[: len(kept)] != kept:
            yield f"the list {ids} became {now.lists.get(topic)}"
    for ledger_id, row in before.ledgers.items():
        if row.state.value == "CLOSED" and now.ledgers.get(ledger_id, row) != row:
            yield f"ledger {ledger_id} was closed as {row} and is {now.ledgers[ledger_id]}"
    yield from _unended(before, now, licence)
    yield from _moved_back(before, now, licence)


def _unended(before: Moment, now: Moment, licence: Licence) -> Iterator[str]:
    """A row that ended stays as it ended (PIP-186, idempotency)."""
    for row_id, row in before.intents.items():
        if row.state.value == "PENDING" or now.intents.get(row_id) == row:
            continue
        late = not row.segments and row.ledger_id in now.stored  # its creator has put objects since, and told so
        reopened = late and row.state.value == "DELETED"
        redriven = licence.redriven and row.state.value == "DEAD_LETTERED"
        if row_id not in now.intents and row.state.value == "DELETED" and _is_old(now, row_id):
            continue
        if row_id not in now.intents or not (reopened or redriven):
            yield f"an intent ended as {row} and is {now.intents.get(row_id)}"


def _is_old(seen: Moment, row_id: int) -> bool:
    return seen.memory_us[row_id] >= FORGOTTEN_S * 1_000_000


def _moved_back(before: Moment, now: Moment, licence: Licence) -> Iterator[str]:
    for key, cursor in before.cursors.items():
        if key in now.cursors and key != licence.sought:
            was, now_at = cursor.state.mark_delete, now.cursors[key].state.mark_delete
            if now_at < was:
                yield f"subscription {key} went back from {was} to {now_at}"
