"""A real store that is damaged in every way that reconciliation knows, with the truth kept apart.

Truth is worked out here from what was done, never asked from the code under test: kind, ledger, and key or row.
"""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import uuid4

import psycopg
from pyroaring import BitMap

from logstore.cursors.cursor_state import CursorSnapshot
from logstore.delayed.index_buckets import IndexBucket
from logstore.deletion.retention import RetentionPolicy
from logstore.identity.bucket_markers import PROBE_PREFIX
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import ledger_prefix, meta_key, segment_key, segment_number_from_key
from logstore.log.ledgers import Component, LedgerOwner, LedgerStatement
from logstore.log.segment_format import EXTENT_FIELD, RegisteredLedgerExtent
from logstore.log.services.component_ledgers import ComponentLedgers, CreatedLedger, OneEntryLedgerDraft
from logstore.log.services.segment_placement import upload_confirmation
from logstore.offload.tiered_copy import CopyLengths, data_key, index_key
from logstore.ports.catalog.cursors import CursorSnapshotCondition
from logstore.ports.catalog.delayed import IndexBucketSwitch, NewIndexBucket
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId, Position
from logstore.reconciliation.findings import FindingKind
from logstore.retrying_clock import Clock
from logstore.validated_names import TopicName
from workers.assembly.log_store import LogStore
from workers.settings import Settings

_K = FindingKind
Truth = tuple[FindingKind, int | None, str]
"""Kind, ledger, and the key of an object; "" of a row."""

_HOUR_US: Final = 3_600_000_000


@dataclass
class Damaged:
    """A log store of real servers, and what was done to it."""

    settings: Settings
    log: LogStore
    truth: set[Truth] = field(default_factory=set)
    aged: set[Truth] = field(default_factory=set)  # of the truth about rows, what is told by the ages of objects alone
    healthy: list[LedgerId] = field(default_factory=list)
    topics: list[Topic] = field(default_factory=list)

    @property
    def bucket(self) -> Any:
        """The primary one, beneath the check whose it is."""
        store: Any = self.log.objects
        return store._connect()

    @property
    def s3(self) -> Any:
        """The plain client."""
        return self.bucket.client

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Behind the catalog's back; `?` stands for a value."""
        if not self.settings.database_url.startswith("sqlite"):
            url = self.settings.database_url.replace("+psycopg", "")
            with psycopg.connect(url, autocommit=True) as server:
                done = server.execute(statement.replace("?", "%s").encode(), values)
                return done.fetchall() if done.description else []
        path = self.settings.database_url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
            return connection.execute(statement, values).fetchall()

    def topic(self, name: str, ledgers: int = 3) -> tuple[Topic, list[LedgerId]]:
        """A topic of so many ledgers of two segments; the last is open."""
        encoded = TopicName.parse(f"persistent://test/ns/{name}").encoded
        topic = self.log.catalog.topics.create_topic(encoded, RetentionPolicy())
        self.topics.append(topic)
        found: list[LedgerId] = []
        for number in range(ledgers):
            if number:
                self.log.topic_logs.roll(topic)
            for part in range(2):
                entries = [NewEntry(payload=f"{name} {number} {part}".encode())]
                done = self.log.topic_logs.append(topic, ProducedEntries(entries=entries))
            assert done.first
            found.append(done.first.ledger_id)
        self.healthy += found
        return topic, found

    def statement(self, ledger_id: LedgerId) -> LedgerStatement:
        """As storage has it."""
        (meta,) = [one.key for one in self.log.objects.list(ledger_prefix(ledger_id)) if one.key.endswith("meta.json")]
        return LedgerStatement.from_metadata(self.log.objects.head(meta)[1])  # type: ignore[index]

    def put(self, key: str, statement: LedgerStatement, body: bytes = b"x" * 20, *, tiered: bool = False) -> None:
        """An object with a statement of its own."""
        bucket = self.settings.tiered_bucket if tiered else self.settings.primary_bucket
        self.s3.put_object(Bucket=bucket, Key=key, Body=body, Metadata=statement.to_metadata())

    def remove(self, key: str, *, tiered: bool = False) -> None:
        """As a stray delete would."""
        bucket = self.settings.tiered_bucket if tiered else self.settings.primary_bucket
        self.s3.delete_object(Bucket=bucket, Key=key)

    def spare_id(self) -> LedgerId:
        """An id that was given out, and of which no row is left."""
        ((taken,),) = self.sql("SELECT next_ledger_id FROM catalog")
        self.sql("UPDATE catalog SET next_ledger_id = next_ledger_id + 1")
        return LedgerId(taken)

    def orphan(self, like: LedgerId, **changes: Any) -> LedgerId:
        """Objects of a ledger that no row names; of its statement some fields are others."""
        ledger_id = self.spare_id()
        statement = self.statement(like)
        whole = replace(statement, ledger_id=ledger_id, owner=replace(statement.owner, **changes))
        self.put(meta_key(ledger_id, whole.owner), whole, whole.to_json())
        self.put(segment_key(ledger_id, 0), whole)
        return ledger_id

    def sealed(self, topic: Topic, ledger_id: LedgerId) -> LedgerId:
        """A bucket of the topic's delayed messages, of that data ledger's entries; the ledger that holds it."""
        catalog, (first, last) = self.log.catalog, (Position(ledger_id, 0), Position(ledger_id, 1))
        made = self._stored(topic, Component.DELAYED_INDEX, {})
        bucket = IndexBucket(
            bucket_id=made.ledger_id, first=first, last=last, messages=1, segments=1, first_ms=1, last_ms=1
        )
        new = NewIndexBucket(bucket=bucket, size_bytes=made.size_bytes, sha256=made.sha256)
        expected = catalog.delayed.get_bucket_list(topic.topic_id).version
        assert catalog.delayed.switch_buckets(
            IndexBucketSwitch(topic_id=topic.topic_id, expected=expected, added=(new,), sealed_to=last)
        )
        return made.ledger_id

    def snapshot(self, topic: Topic, cursor: str, entry: Position) -> LedgerId:
        """Return the cursor's new ledger, which states that entry as acknowledged."""
        made = self._stored(topic, Component.MANAGED_CURSOR, {"cursor": cursor})
        row = self.log.catalog.cursors.get_cursor(topic.topic_id, cursor)
        change = CursorSnapshotCondition(
            topic_id=topic.topic_id, subscription=cursor, expected=row.snapshot_ledger, seeks=row.seeks
        )
        held = CursorSnapshot(ledger_id=made.ledger_id, acknowledged={entry.ledger_id: BitMap([entry.entry_id])})
        publish = self.log.catalog.cursors.publish_snapshot
        assert publish(change, held, size_bytes=made.size_bytes, sha256=made.sha256)
        return made.ledger_id

    def buffer_snapshot(self, topic: Topic) -> CreatedLedger:
        """Return a ledger for the topic's transaction buffer, which no row names yet."""
        return self._stored(topic, Component.TXN_SNAPSHOT, {})

    def keys(self, ledger_id: LedgerId | None, *, tiered: bool = False) -> list[str]:
        """Return the keys of one ledger's primary objects, or with `None` all keys of a bucket."""
        bucket = self.settings.tiered_bucket if tiered else self.settings.primary_bucket
        prefix = "" if ledger_id is None else ledger_prefix(ledger_id)
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [found["Key"] for page in pages for found in page.get("Contents", ())]

    def _stored(self, topic: Topic, component: Component, keys: dict[str, str]) -> CreatedLedger:
        catalog = self.log.catalog
        written = ComponentLedgers(
            components=catalog.components, ledgers=catalog.ledgers, objects=self.log.objects, application="sexton"
        )
        return written.write_unlisted(
            OneEntryLedgerDraft(
                topic_id=topic.topic_id, component=component, keys=keys, content=b"content", properties={}
            )
        )

    def offload(self, ledger_id: LedgerId, uuid: str) -> None:
        """A tiered copy, published."""
        done = self.log.offloader.upload_and_prove(ledger_id, uuid, timeout_s=600)
        assert done.evidence
        lengths = CopyLengths(data_bytes=done.evidence.size_bytes, index_bytes=done.evidence.index_bytes)
        self.log.catalog.offloads.publish_tiered_copy(ledger_id, uuid, lengths=lengths)


Damage = Callable[[Damaged], None]


def orphan_ledgers(store: Damaged) -> None:
    """Of a topic that lives, of one that never was, and one whose deletion had ended."""
    _, (first, *_) = store.topic("orphans")
    for changes in ({}, {"topic": "persistent://test/ns/gone", "topic_id": 99}):
        found = store.orphan(first, **changes)
        store.truth.add((_K.ORPHAN_LEDGER, found, ledger_prefix(found)))
    late = store.orphan(first)
    file_intent(store, store.statement(late), "DELETED", "DELETED")
    store.truth.add((_K.ORPHAN_LEDGER, late, ledger_prefix(late)))


def orphan_segments(store: Damaged) -> None:
    """Of a closed ledger and of an open one, in a gap and behind the end."""
    _, ledgers = store.topic("segments")
    for ledger_id, number in ((ledgers[0], 2), (ledgers[2], 5)):
        store.put(segment_key(ledger_id, number), store.statement(ledger_id))
        store.truth.add((_K.ORPHAN_SEGMENT, ledger_id, segment_key(ledger_id, number)))


def confirmations(store: Damaged) -> None:
    """As a contended topic leaves them, of a closed ledger and of the open one; what is not far enough up is none."""
    _, ledgers = store.topic("confirmed")
    for ledger_id in (ledgers[0], ledgers[2]):
        said, clock = RegisteredLedgerExtent(last_segment=1, entries=2), Clock()
        upload_confirmation(
            store.log.objects, store.statement(ledger_id), said, clock=clock, deadline_s=clock.monotonic_s() + 60
        )
        found = [segment_number_from_key(one.key) for one in store.log.objects.list(ledger_prefix(ledger_id))]
        store.truth.add((_K.CONFIRMATION, ledger_id, segment_key(ledger_id, max(one or 0 for one in found))))
    near = segment_key(ledgers[0], 18)
    metadata = store.statement(ledgers[0]).to_metadata() | {
        EXTENT_FIELD: str(RegisteredLedgerExtent(last_segment=1, entries=2))
    }
    store.s3.put_object(Bucket=store.settings.primary_bucket, Key=near, Body=b"x", Metadata=metadata)
    store.truth.add((_K.ORPHAN_SEGMENT, ledgers[0], near))


def orphan_offloads(store: Damaged) -> None:
    """A pair, data alone, and parts of an upload; a published copy is none."""
    _, ledgers = store.topic("offloads")
    store.offload(ledgers[0], str(uuid4()))
    statement, pair, alone, begun = store.statement(ledgers[0]), str(uuid4()), f"Z{uuid4()}", str(uuid4())
    for key in (data_key(pair, ledgers[0]), index_key(pair, ledgers[0]), data_key(alone, ledgers[0])):
        store.put(key, statement, tiered=True)
    store.s3.create_multipart_upload(Bucket=store.settings.tiered_bucket, Key=data_key(begun, ledgers[0]))
    store.truth |= {(_K.ORPHAN_OFFLOAD, ledgers[0], data_key(uuid, ledgers[0])) for uuid in (pair, alone, begun)}


def unreferenced_ledgers(store: Damaged) -> None:
    """An older snapshot of a cursor that names a newer one."""
    topic, ledgers = store.topic("left")
    store.log.subscriptions.subscribe(topic.topic_id, "billing", latest=False)
    old = store.snapshot(topic, "billing", Position(ledgers[0], 1))
    store.sql("UPDATE cursor SET snapshot_ledger = NULL WHERE snapshot_ledger = ?", old)
    store.snapshot(topic, "billing", Position(ledgers[0], 1))
    store.truth.add((_K.UNREFERENCED_LEDGER, old, ""))


def lost_references(store: Damaged) -> None:
    """The one row that names a ledger: its place in a list, a bucket, a schema's version, a cursor."""
    topic, ledgers = store.topic("lost")
    bucket = store.sealed(topic, ledgers[1])
    store.sql("DELETE FROM delayed_bucket WHERE ledger_id = ?", bucket)
    store.sql("UPDATE ledger SET place = NULL WHERE ledger_id = ?", ledgers[0])
    store.healthy.remove(ledgers[0])
    schema = store.log.schemas.set(topic, b"{}").ledger_id
    store.sql("DELETE FROM schema_version WHERE ledger_id = ?", schema)
    store.log.subscriptions.subscribe(topic.topic_id, "billing", latest=False)
    snapshot = store.snapshot(topic, "billing", Position(ledgers[1], 1))
    store.sql("DELETE FROM cursor WHERE snapshot_ledger = ?", snapshot)
    store.truth |= {(_K.MISSING_DATA, one, "") for one in (ledgers[0], bucket, schema, snapshot)}


def lost_segment_rows(store: Damaged) -> None:
    """One row of two, the other one, and all rows; beside the last, an object that never had a row may be one, too."""
    _, ledgers = store.topic("sums", ledgers=4)
    lost = {ledgers[0]: (1,), ledgers[1]: (0,), ledgers[2]: (0, 1)}
    for ledger_id, numbers in lost.items():
        store.truth.add((_K.MISSING_DATA, ledger_id, ""))
        for number in numbers:
            store.sql("DELETE FROM segment WHERE ledger_id = ? AND number = ?", ledger_id, number)
            store.aged.add((_K.MISSING_DATA, ledger_id, segment_key(ledger_id, number)))
        store.healthy.remove(ledger_id)
    store.put(segment_key(ledgers[2], 7), store.statement(ledgers[2]))
    store.aged.add((_K.MISSING_DATA, ledgers[2], segment_key(ledgers[2], 7)))
    store.truth |= store.aged


def stalled_deletions(store: Damaged) -> None:
    """An intent whose batch nobody works on, its objects in place."""
    _, (first, *_) = store.topic("stalled")
    ledger_id = store.orphan(first)
    file_intent(store, store.statement(ledger_id), "PENDING", None)
    store.truth.add((_K.STALLED_DELETION, ledger_id, ""))


def missing_data(store: Damaged) -> None:
    """A segment, a whole ledger, a statement, half a segment, half of a tiered pair, and a bucket's snapshot."""
    topic, ledgers = store.topic("missing", ledgers=6)
    bucket = store.sealed(topic, ledgers[5])
    store.remove(segment_key(bucket, 0))
    store.truth.add((_K.MISSING_DATA, bucket, segment_key(bucket, 0)))
    keys = [segment_key(ledgers[0], 1), ledger_prefix(ledgers[1]), "", segment_key(ledgers[3], 0)]
    keys[2] = meta_key(ledgers[2], store.statement(ledgers[2]).owner)
    store.remove(keys[0])
    for found in list(store.log.objects.list(keys[1])):
        store.remove(found.key)
    store.remove(keys[2])
    store.put(keys[3], store.statement(ledgers[3]), b"short")
    uuid = str(uuid4())
    store.offload(ledgers[4], uuid)
    store.remove(index_key(uuid, ledgers[4]), tiered=True)
    store.truth |= {(_K.MISSING_DATA, one, key) for one, key in zip(ledgers, keys, strict=False)}
    store.truth.add((_K.MISSING_DATA, ledgers[4], index_key(uuid, ledgers[4])))
    store.healthy = [one for one in store.healthy if one not in ledgers[:5]]


def moved_bytes(store: Damaged) -> None:
    """One segment is longer by what its neighbour lacks, so that no sum of sizes tells."""
    _, ledgers = store.topic("moved")
    sizes = {found.key: found.size_bytes for found in store.log.objects.list(ledger_prefix(ledgers[0]))}
    short, long = segment_key(ledgers[0], 0), segment_key(ledgers[0], 1)
    store.put(short, store.statement(ledgers[0]), b"x" * (sizes[short] - 3))
    store.put(long, store.statement(ledgers[0]), b"x" * (sizes[long] + 3))
    store.truth |= {(_K.MISSING_DATA, ledgers[0], short), (_K.MISMATCH, ledgers[0], long)}
    store.healthy.remove(ledgers[0])


def cut_tiered_copies(store: Damaged) -> None:
    """The data or the index of a tiered copy lost its end, or the data has grown."""
    _, ledgers = store.topic("cut", ledgers=4)  # the last one is open
    for ledger_id, name, kind, change in (
        (ledgers[0], data_key, _K.MISSING_DATA, -3),
        (ledgers[1], index_key, _K.MISSING_DATA, -1),
        (ledgers[2], data_key, _K.MISMATCH, 1),
    ):
        uuid = str(uuid4())
        store.offload(ledger_id, uuid)
        key = name(uuid, ledger_id)
        size = store.s3.head_object(Bucket=store.settings.tiered_bucket, Key=key)["ContentLength"]
        store.put(key, store.statement(ledger_id), b"x" * (size + change), tiered=True)
        store.truth.add((kind, ledger_id, key))
        store.healthy.remove(ledger_id)


def mismatches(store: Damaged) -> None:
    """Another's statement beside a live one, a segment that grew, a refused deletion, an id from the future."""
    _, ledgers = store.topic("mismatch")
    statement = store.statement(ledgers[0])
    other = replace(statement, owner=replace(statement.owner, topic="persistent://test/ns/other"))
    store.put(meta_key(ledgers[0], other.owner), other)
    store.truth.add((_K.MISMATCH, ledgers[0], meta_key(ledgers[0], other.owner)))
    store.put(segment_key(ledgers[1], 0), store.statement(ledgers[1]), b"x" * 100_000)
    store.truth.add((_K.MISMATCH, ledgers[1], segment_key(ledgers[1], 0)))
    refused = store.orphan(ledgers[2])
    file_intent(store, store.statement(refused), "DEAD_LETTERED", "METADATA_MISMATCH")
    store.truth.add((_K.MISMATCH, refused, ledger_prefix(refused)))
    future = LedgerId(1 << 40)
    stated = replace(statement, ledger_id=future)
    store.put(meta_key(future, stated.owner), stated)
    store.truth.add((_K.MISMATCH, future, ledger_prefix(future)))
    store.healthy = [one for one in store.healthy if one not in ledgers[:2]]


def lost_rows(store: Damaged) -> None:
    """Of copies: of the only one, of one whose ledger has lost its row too, of a tiered one, of a primary one alone."""
    _, ledgers = store.topic("rows", ledgers=5)
    for ledger_id in ledgers[:4]:
        store.sql("DELETE FROM ledger_copy WHERE ledger_id = ?", ledger_id)
    store.sql("DELETE FROM ledger WHERE ledger_id = ?", ledgers[1])
    store.truth |= {(_K.MISSING_DATA, one, "") for one in (ledgers[0], ledgers[2])}
    uuid, statement = str(uuid4()), store.statement(ledgers[2])
    for key in (data_key(uuid, ledgers[2]), index_key(uuid, ledgers[2])):
        store.put(key, statement, tiered=True)
    for found in list(store.log.objects.list(ledger_prefix(ledgers[2]))):
        store.remove(found.key)
    store.aged |= {
        (_K.MISSING_DATA, ledgers[1], ledger_prefix(ledgers[1])),
        (_K.MISSING_DATA, ledgers[2], data_key(uuid, ledgers[2])),
    }
    store.sql(
        "INSERT INTO ledger_copy (ledger_id, kind, state, context) VALUES (?, 'LEDGER', 'LIVE', '{}')", ledgers[3]
    )
    store.offload(ledgers[3], str(uuid4()))
    store.sql("DELETE FROM ledger_copy WHERE ledger_id = ? AND kind = 'LEDGER'", ledgers[3])
    store.truth |= {*store.aged, (_K.MISMATCH, ledgers[3], ledger_prefix(ledgers[3]))}
    store.healthy = [one for one in store.healthy if one not in ledgers[:4]]


def objects_of_another_store(store: Damaged) -> None:
    """Under an id that was given out here too, and ended; and under a ledger that lives."""
    _, (first, *_) = store.topic("twins")
    twin = store.spare_id()
    statement = store.statement(first)
    theirs = replace(statement, ledger_id=twin, created_us=statement.created_us + 1)
    for key in (meta_key(twin, theirs.owner), segment_key(twin, 0)):
        store.put(key, theirs)
    file_intent(store, replace(statement, ledger_id=twin), "DELETED", "DELETED")
    beside = replace(statement, owner=replace(statement.owner, topic="persistent://test/ns/theirs"))
    keys = [meta_key(first, beside.owner), segment_key(first, 9)]
    for key in keys:
        store.put(key, beside)
    store.truth |= {(_K.MISMATCH, twin, ledger_prefix(twin)), *((_K.MISMATCH, first, key) for key in keys)}


def foreign_objects(store: Damaged) -> None:
    """Keys that are no ledger's, in odd places and with odd names, and a ledger of another application."""
    _, (first, *_) = store.topic("foreign")
    keys = ["notes.txt", "ledgers/zz/x", "ledgers/readme", "back up/%41 ~+é.bin", "ledgers/00/0000/1.parquet"]
    for key in keys:
        store.put(key, store.statement(first))
        store.truth.add((_K.FOREIGN, None, key))
    for key in ("someone-elses", "0note", "xyz/ledger"):
        store.put(key, store.statement(first), tiered=True)
        store.truth.add((_K.FOREIGN, None, key))
    other = store.orphan(first, application="other")
    store.truth.add((_K.FOREIGN, other, ledger_prefix(other)))
    silent = store.spare_id()
    store.s3.put_object(Bucket=store.settings.primary_bucket, Key=segment_key(silent, 0), Body=b"x")
    store.truth.add((_K.FOREIGN, silent, ledger_prefix(silent)))


EVERY: Final[tuple[Damage, ...]] = (
    orphan_ledgers,
    orphan_segments,
    confirmations,
    orphan_offloads,
    unreferenced_ledgers,
    lost_references,
    lost_segment_rows,
    stalled_deletions,
    missing_data,
    moved_bytes,
    cut_tiered_copies,
    mismatches,
    lost_rows,
    objects_of_another_store,
    foreign_objects,
)


def healthy(store: Damaged) -> None:
    """What must never be a finding: component ledgers, an ended deletion, a removed copy, a probe of `doctor`."""
    for bucket in (store.settings.primary_bucket, store.settings.tiered_bucket):
        store.s3.put_object(Bucket=bucket, Key=f"{PROBE_PREFIX}1", Body=b"x")
    topic, ledgers = store.topic("healthy")
    store.log.subscriptions.subscribe(topic.topic_id, "billing", latest=False)
    store.log.schemas.set(topic, b'{"type": "record"}')
    store.sealed(topic, ledgers[1])
    store.log.subscriptions.acknowledge(topic.topic_id, "billing", positions=(Position(ledgers[0], 1),))
    store.offload(ledgers[1], str(uuid4()))


def file_intent(store: Damaged, statement: LedgerStatement, state: str, outcome: str | None) -> None:
    """File a deletion of the primary copy of that ledger, in that state."""
    owner: LedgerOwner = statement.owner
    row = {
        "batch_id": "", "ledger_id": statement.ledger_id, "copy": "LEDGER", "generation": 1,
        "application": owner.application, "component": owner.component.value, "topic_id": owner.topic_id,
        "topic": owner.topic,
        "keys": json.dumps(dict(owner.keys)), "context": "{}", "segments": 1, "last_segment": 0,
        "ledger_created_us": statement.created_us, "size_bytes": 20, "epoch": 1, "state": state, "outcome": outcome,
        "attempts": 0, "keys_left_attempts": 0, "objects_deleted": 0, "bytes_deleted": 0, "created_us": 1,
    }  # fmt: skip
    names = ", ".join(f'"{name}"' for name in row)
    store.sql(f"INSERT INTO pending_deletion ({names}) VALUES ({', '.join('?' * len(row))})", *row.values())
