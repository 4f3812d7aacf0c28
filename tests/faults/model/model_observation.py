"""Storage and catalog at one moment: raw rows of the fakes, keys and digests worked out on its own."""

import hashlib
import io
import json
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import pyarrow.parquet as pq
from pyroaring import BitMap

from logstore.deletion.intents import DeletionIntent
from logstore.log.ledgers import LedgerStatement
from logstore.ports.catalog.cursors import StoredCursor
from logstore.ports.catalog.log import Ledger, Segment
from tests.faults.model.model_world import ModelWorld

_KEY: Final = re.compile(r"ledgers/(?P<shard>[0-9a-f]{2})/(?P<id>[0-9a-f]{16})/(?P<name>.+)")
_COLD_KEY: Final = re.compile(r"(?P<uuid>[0-9a-f]{8})-ledger-(?P<id>\d+)(?P<index>-index)?")

EntryPlace = tuple[int, int]
"""A ledger and an entry."""


@dataclass(frozen=True, kw_only=True)
class ModelObservation:
    """Storage and catalog at one moment."""

    objects: Mapping[str, bytes]
    planted: Mapping[str, bytes]
    late: frozenset[str]
    told: frozenset[str]  # of these, what phase two has been asked to look for
    given_up: frozenset[int]  # ledgers that somebody uploaded to, or perhaps did, and gave up
    lists: Mapping[int, tuple[int, ...]]  # by topic
    ledgers: Mapping[int, Ledger]
    statements: Mapping[int, LedgerStatement]
    segments: Mapping[int, tuple[Segment, ...]]
    cold: Mapping[str, bytes]
    foreign_tiered_objects: Mapping[str, bytes]
    uploads: frozenset[str]  # keys of uploads in parts that nobody ended
    copies: frozenset[tuple[int, str]]  # ledger, and the uuid of a tiered copy or nothing
    live: frozenset[tuple[int, str]]  # those that may be read
    intents: Mapping[int, DeletionIntent]
    us_since_end_by_intent: Mapping[int, int]  # for how long an intent that ended is over
    forged: frozenset[int]  # intents that nobody's detach filed
    cursors: Mapping[tuple[int, str], StoredCursor]
    schemas: Mapping[int, tuple[int, ...]]  # ledgers by topic, ascending by version

    @property
    def late_ledgers(self) -> set[int]:
        """Ledgers to which something came when the catalog no longer had them, or may have come."""
        return _ledgers_of_keys(self.late) | self.given_up

    @property
    def awaited(self) -> set[int]:
        """Ledgers with objects that came late, and that phase two knows of."""
        return _ledgers_of_keys(self.told & self.objects.keys())

    @property
    def stored(self) -> dict[int, list[str]]:
        """Names of Sexton's own objects below each ledger's prefix."""
        names_by_ledger: dict[int, list[str]] = {}
        for key in sorted(self.objects.keys() - self.planted.keys() - self.late):
            match = _KEY.fullmatch(key)
            assert match, f"Sexton wrote a key that is no ledger's: {key}"
            ledger_id = int(match["id"], 16)
            assert int(match["shard"], 16) == ledger_id % 256, f"{key} stands in the wrong shard"
            names_by_ledger.setdefault(ledger_id, []).append(match["name"])
        return names_by_ledger

    @property
    def listed(self) -> set[int]:
        """Ids of all lists, of every component."""
        data = {ledger_id for ids in self.lists.values() for ledger_id in ids}
        return data | {
            ledger_id for ledger_id, row in self.ledgers.items() if is_component(row) and row.state.value == "CLOSED"
        }

    @property
    def tiered_parts_by_copy(self) -> dict[tuple[int, str], list[str]]:
        """What stands of each attempt's tiered copy."""
        parts_by_copy: dict[tuple[int, str], list[str]] = {}
        for key in sorted((self.cold.keys() | self.uploads) - self.foreign_tiered_objects.keys()):
            match = _COLD_KEY.fullmatch(key)
            assert match, f"Sexton wrote a key that is no ledger's: {key}"
            parts_by_copy.setdefault((int(match["id"]), match["uuid"]), []).append(match["index"] or "data")
        return parts_by_copy

    def list_topic_ledgers(self, topic: int) -> tuple[int, ...]:
        """Data ledgers of the topic; of one that is gone, none."""
        return self.lists.get(topic, ())

    def intended(self, *states: str) -> set[int]:
        """Ledgers whose primary copy has an intent in one of the states."""
        return {ledger_id for ledger_id, uuid in self.copies_with_intent(*states) if not uuid}

    def copies_with_intent(self, *states: str) -> set[tuple[int, str]]:
        """Copies that have an intent in one of the states."""
        rows = [row for row in self.intents.values() if row.row_id not in self.forged]
        return {(row.ledger_id, row.context.get("uuid", "")) for row in rows if row.state.value in states}

    def find_readable_uuid(self, ledger_id: int) -> str | None:
        """The tiered copy that may be read."""
        return next((uuid for copy_ledger, uuid in self.live if copy_ledger == ledger_id and uuid), None)

    def numbers(self, ledger_id: int) -> list[int]:
        """Sequence ids of a ledger's entries, in order, read from its objects; empty where one is lost."""
        if (ledger_id, "") not in self.copies:
            body = self.cold.get(f"{self.find_readable_uuid(ledger_id)}-ledger-{ledger_id}")
            return [] if body is None else _read_sequence_numbers(body)
        sequence_numbers: list[int] = []
        for row in self.segments.get(ledger_id, ()):
            body = self.objects.get(f"{primary_prefix(ledger_id)}{row.number:08d}.parquet")
            sequence_numbers += [] if body is None else _read_sequence_numbers(body)
        return sequence_numbers

    def covered(self, topic: int, name: str) -> frozenset[EntryPlace]:
        """Listed entries that the subscription has acknowledged."""
        cursor = self.cursors[topic, name]
        mark = (int(cursor.state.mark_delete.ledger_id), cursor.state.mark_delete.entry_id)
        single = {
            (int(acknowledged_ledger), entry)
            for acknowledged_ledger, bits in cursor.state.acknowledged.items()
            for entry in bits
        }
        single |= self._read_cursor_snapshot(cursor.snapshot_ledger)
        return frozenset(place for place in self.entries(topic) if place <= mark or place in single)

    def _read_cursor_snapshot(self, ledger_id: int | None) -> frozenset[EntryPlace]:
        """What a cursor ledger holds."""
        body = self.objects.get(f"{primary_prefix(ledger_id)}{0:08d}.parquet") if ledger_id is not None else None
        return frozenset() if body is None else _unpack_acknowledged(body)

    def entries(self, topic: int) -> list[EntryPlace]:
        """Every listed entry of the topic."""
        return [
            (ledger_id, entry)
            for ledger_id in self.list_topic_ledgers(topic)
            for entry in range(self.ledgers[ledger_id].entries)
        ]


def observe_model(house: ModelWorld, forged: frozenset[int]) -> ModelObservation:
    """Everything as it is now."""
    catalog = house.catalog
    ledger_copies = [(one, copy) for one, copies in catalog.copies.items() for copy in copies.values()]
    return ModelObservation(
        objects=house.store.bodies,
        planted=dict(house.store.planted),
        late=frozenset(house.store.late),
        told=frozenset(house.store.told),
        given_up=frozenset(house.ledgers.given_up),
        lists={topic: tuple(ids) for topic, ids in catalog.lists.items()},
        ledgers={int(one): row for one, row in catalog.ledger_rows.items()},
        statements={int(one): statement for one, statement in catalog.statements.items()},
        segments={one: tuple(ledger_copies) for one, ledger_copies in catalog.segment_rows.items()},
        cold=house.cold.bodies,
        foreign_tiered_objects=dict(house.cold.planted),
        uploads=frozenset(house.cold.unfinished),
        copies=frozenset((int(one), copy.context.get("uuid", "")) for one, copy in ledger_copies),
        live=frozenset(
            (int(one), copy.context.get("uuid", "")) for one, copy in ledger_copies if copy.state.value == "LIVE"
        ),
        intents=dict(catalog.intent_rows),
        us_since_end_by_intent={row_id: catalog.now_us - ended_us for row_id, ended_us in catalog.ended_us.items()},
        forged=forged,
        cursors={(int(topic), name): row for (topic, name), row in catalog.cursor_rows.items()},
        schemas={
            int(topic): tuple(one.ledger_id for one in ledger_copies)
            for topic, ledger_copies in catalog.schema_rows.items()
        },
    )


def _ledgers_of_keys(keys: Iterable[str]) -> set[int]:
    return {int(at["id"], 16) for key in keys if (at := _KEY.fullmatch(key))}


def primary_prefix(ledger_id: int) -> str:
    """Prefix of a ledger's primary copy."""
    return f"ledgers/{ledger_id % 256:02x}/{ledger_id:016x}/"


@lru_cache(maxsize=4096)
def _read_sequence_numbers(body: bytes) -> list[int]:
    rows = pq.read_table(io.BytesIO(body), columns=["sequence_id", "payload"]).to_pylist()
    assert all(row["payload"] == str(row["sequence_id"]).encode() for row in rows), "an entry reads differently"
    return [row["sequence_id"] for row in rows]


@lru_cache(maxsize=4096)
def _unpack_acknowledged(body: bytes) -> frozenset[EntryPlace]:
    """Bitmaps ascending by ledger: id (int64), length (uint32), portable roaring."""
    (row,) = pq.read_table(io.BytesIO(body), columns=["payload"]).to_pylist()
    packed, places, offset = row["payload"], set(), 0
    while offset < len(packed):
        ledger_id, length = struct.unpack_from("<qI", packed, offset)
        offset += 12 + length
        places |= {(ledger_id, entry) for entry in BitMap.deserialize(packed[offset - length : offset])}
    return frozenset(places)


def is_component(row: Ledger) -> bool:
    """Whether it is not a ledger of messages."""
    return row.component.value != "MANAGED_LEDGER"


def expected_meta_name(statement: LedgerStatement) -> str:
    """Worked out from the format's description: first 16 hex digits of SHA-256 over the owner's statement."""
    owner = statement.owner
    statement_facts = [
        owner.application,
        owner.component.value,
        owner.topic_id,
        owner.topic,
        sorted(map(list, owner.keys.items())),
    ]
    return hashlib.sha256(json.dumps(statement_facts, separators=(",", ":")).encode()).hexdigest()[:16] + ".meta.json"
