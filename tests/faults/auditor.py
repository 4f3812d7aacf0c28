"""An auditor that trusts no code of Sexton's: it reads objects as bytes and the catalog with plain sqlite3.

It recomputes four sets (stored, referenced, intended, finished) and says, in sentences, where they do not add up.
"""

import hashlib
import io
import json
import re
import sqlite3
import struct
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyroaring import BitMap

from tests.faults.tiered import Tiered, look_tiered, wrong_tiered_at_any_moment, wrong_tiered_at_rest

_KEY = re.compile(r"ledgers/(?P<shard>[0-9a-f]{2})/(?P<id>[0-9a-f]{16})/(?P<name>.+)")
_SEGMENT = re.compile(r"(?P<number>[0-9]{8})\.parquet")
_OUTLIVE = {"pending_deletion", "tombstone", "run", "audit", "transaction_participant"}
"""Tables that may name a topic that is gone."""
_COMPARED = (
    "SELECT topic_id, name, state FROM topic ORDER BY topic_id",
    "SELECT * FROM ledger ORDER BY ledger_id",
    "SELECT * FROM ledger_copy ORDER BY ledger_id, kind",
    "SELECT * FROM segment ORDER BY ledger_id, number",
    "SELECT * FROM producer_sequence ORDER BY topic_id, producer",
    "SELECT * FROM cursor ORDER BY cursor_id",
    "SELECT * FROM schema_version ORDER BY topic_id, version",
    "SELECT * FROM pending_deletion ORDER BY row_id",
    "SELECT next_ledger_id FROM catalog",
    'SELECT tc_id, sequence, state, finished_us FROM "transaction" ORDER BY tc_id, sequence',
    "SELECT * FROM buffer_range ORDER BY ledger_id, first_entry",
    "SELECT * FROM buffer_hidden ORDER BY ledger_id",
    "SELECT topic_id, version, sealed_ledger, sealed_entry, unsealed FROM delayed_index ORDER BY topic_id",
    "SELECT * FROM delayed_bucket ORDER BY ledger_id",
)

LONG_GONE = 999_999
"""A ledger whose deletion ended long ago: the only one that is old enough to be forgotten."""

Sequence = int
"""What a test's producer numbers its entries with: 0, 1, 2, … on every topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """A row of `ledger` with what else the catalog says of it."""

    topic: str
    topic_id: int
    listed: bool
    state: str
    entries: int
    application: str
    segments: tuple[tuple[int, int, int, int], ...]  # number, first entry, entries, bytes; ascending
    component: str
    keys: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A row of `pending_deletion`."""

    topic: str
    batch_id: str
    state: str
    outcome: str | None
    error: str | None
    segments: int
    component: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A row of `cursor`."""

    topic: str
    name: str
    mark: tuple[int, int]
    acknowledged: bytes  # beyond its snapshot
    snapshot: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A row of `schema_version`."""

    topic: str
    version: int
    ledger_id: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Storage and catalog at one moment."""

    objects: Mapping[str, bytes]
    planted: Mapping[str, bytes]  # what others put there, as it was
    ledgers: Mapping[int, Ledger]
    intents: Mapping[int, Intent]
    cursors: tuple[Cursor, ...]
    schemas: tuple[Schema, ...]
    snapshots: Mapping[int, str]  # of transaction buffers: topics by ledger
    buckets: Mapping[int, str]  # of delayed messages, the same
    batches: Mapping[str, bool]  # batch id -> finished
    audit: tuple[tuple[str, str, dict[str, Any]], ...]  # act, workflow id, detail
    topics: Mapping[int, str]  # names by topic id
    attached: Mapping[str, set[int]]  # topic ids that other tables name, by table
    tiered: Tiered
    rows: str  # everything that work done twice must not change, as text

    @property
    def stored(self) -> dict[int, list[str]]:
        """Names of objects below each ledger's prefix, planted ones left out."""
        found: dict[int, list[str]] = {}
        for key in self.objects.keys() - self.planted.keys():
            at = _KEY.fullmatch(key)
            assert at, f"Sexton wrote a key that is no ledger's: {key}"
            ledger_id = int(at["id"], 16)
            assert int(at["shard"], 16) == ledger_id % 256, f"{key} stands in the wrong shard"
            found.setdefault(ledger_id, []).append(at["name"])
        return found

    def listed(self, topic: str, component: str = "MANAGED_LEDGER") -> list[int]:
        """Ids of a topic's lists of a component, ascending."""
        rows = self.ledgers.items()
        return sorted(row for row, it in rows if (it.topic, it.component) == (topic, component) and it.listed)

    def of_state(self, state: str) -> set[int]:
        """Ids of intents in a state."""
        return {row for row, intent in self.intents.items() if intent.state == state}

    def entries(self, ledger_id: int) -> list[tuple[str | None, Sequence, bytes]]:
        """Producer, sequence and payload of every entry of a ledger in order, read from its objects."""
        columns = ["producer", "sequence_id", "payload"]
        found: list[dict[str, Any]] = []
        if not self.tiered.has_primary(ledger_id):
            found = self.tiered.data(ledger_id).read(columns).to_pylist()
        else:
            for number, *_ in self.ledgers[ledger_id].segments:
                body = self.objects[f"{_prefix(ledger_id)}{number:08d}.parquet"]
                found += pq.read_table(io.BytesIO(body), columns=columns).to_pylist()
        return [(row["producer"], row["sequence_id"], row["payload"]) for row in found]

    def content(self, ledger_id: int) -> bytes:
        """The one payload of a component's ledger, read from its object."""
        body = self.objects[f"{_prefix(ledger_id)}00000000.parquet"]
        (payload,) = pq.read_table(io.BytesIO(body), columns=["payload"]).column("payload").to_pylist()
        return bytes(payload)

    def acknowledged(self, cursor: Cursor) -> set[tuple[int, int]]:
        """Entries beyond the mark that a cursor has acknowledged, by its row or by its snapshot."""
        packed = [cursor.acknowledged, *([] if cursor.snapshot is None else [self.content(cursor.snapshot)])]
        return {entry for part in packed for entry in unpacked(part) if entry > cursor.mark}


def unpacked(packed: bytes) -> Iterator[tuple[int, int]]:
    """Ledger and entry of every bit of a cursor's state, by its format: id, length, a portable roaring bitmap."""
    while packed:
        ledger_id, length = struct.unpack_from("<qI", packed)
        yield from ((ledger_id, entry) for entry in BitMap.deserialize(packed[12 : 12 + length]))
        packed = packed[12 + length :]


def look(
    database: Path,
    objects: Mapping[str, bytes],
    planted: Mapping[str, bytes],
    *,
    tiered: Mapping[str, bytes],
    parts: Collection[str],
) -> Seen:
    """Read everything there is."""
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        connection.execute("BEGIN")  # one moment
        segments: dict[int, list[tuple[int, int, int, int]]] = {}
        for ledger_id, *rest in connection.execute(
            "SELECT ledger_id, number, first_entry, entries, size_bytes FROM segment ORDER BY ledger_id, number"
        ):
            segments.setdefault(ledger_id, []).append((rest[0], rest[1], rest[2], rest[3]))
        ledgers = {
            row[0]: Ledger(
                topic=row[1],
                topic_id=row[2],
                listed=row[3] is not None,
                state=row[4],
                entries=row[5],
                application=row[6],
                segments=tuple(segments.pop(row[0], ())),
                component=row[7],
                keys=json.loads(row[8]),
            )
            for row in connection.execute(
                "SELECT l.ledger_id, t.name, t.topic_id, l.place, l.state, l.entries, l.application,"
                " ll.component, ll.owner FROM ledger l"
                " JOIN ledger_list ll ON ll.list_id = l.list_id JOIN topic t ON t.topic_id = ll.topic_id"
            )
        }
        assert not segments, f"segments of ledgers without a row: {sorted(segments)}"
        return Seen(
            objects=dict(objects),
            planted=planted,
            ledgers=ledgers,
            intents=_intents(connection),
            cursors=_cursors(connection),
            schemas=_schemas(connection),
            snapshots=dict(
                connection.execute(
                    "SELECT s.ledger_id, t.name FROM transaction_snapshot s JOIN topic t ON t.topic_id = s.topic_id"
                    " WHERE s.ledger_id IS NOT NULL"
                ).fetchall()
            ),
            buckets=dict(
                connection.execute(
                    "SELECT b.ledger_id, t.name FROM delayed_bucket b JOIN topic t ON t.topic_id = b.topic_id"
                ).fetchall()
            ),
            batches={row[0]: row[1] is not None for row in connection.execute("SELECT run_id, finished_us FROM run")},
            audit=tuple(
                (row[0], row[1], json.loads(row[2]))
                for row in connection.execute("SELECT act, workflow_id, detail FROM audit ORDER BY audit_id")
            ),
            topics=dict(connection.execute("SELECT topic_id, name FROM topic").fetchall()),
            attached=_attached(connection),
            tiered=look_tiered(connection, tiered, parts),
            rows="\n".join(repr(connection.execute(query).fetchall()) for query in _COMPARED),
        )


def _attached(connection: sqlite3.Connection) -> dict[str, set[int]]:
    """Which topics rows speak of, in every table that can: tables that come later are met here too."""
    query = (
        "SELECT m.name FROM sqlite_master m JOIN pragma_table_info(m.name) c"
        " WHERE m.type = 'table' AND c.name = 'topic_id'"
    )
    tables = {row[0] for row in connection.execute(query)} - _OUTLIVE
    found = {name: {row[0] for row in connection.execute(f"SELECT topic_id FROM {name}")} for name in sorted(tables)}
    unlisted = "SELECT list_id FROM ledger WHERE list_id NOT IN (SELECT list_id FROM ledger_list)"
    assert not connection.execute(unlisted).fetchall(), "ledgers of a list that does not exist"
    return found


def _intents(connection: sqlite3.Connection) -> dict[int, Intent]:
    """Of primary copies; those of tiered ones are in `Seen.tiered`."""
    query = "SELECT ledger_id, topic, batch_id, state, outcome, last_error, segments, component FROM pending_deletion"
    query += " WHERE copy = 'LEDGER'"
    rows = connection.execute(query).fetchall()
    names = ("topic", "batch_id", "state", "outcome", "error", "segments", "component")
    found = {row[0]: Intent(**dict(zip(names, row[1:], strict=True))) for row in rows}
    assert len(found) == len(rows), "two intents for the one copy of a ledger"
    return found


def _cursors(connection: sqlite3.Connection) -> tuple[Cursor, ...]:
    query = (
        "SELECT t.name, c.name, c.mark_ledger, c.mark_entry, c.acknowledged, c.snapshot_ledger FROM cursor c"
        " JOIN topic t ON t.topic_id = c.topic_id ORDER BY c.cursor_id"
    )
    return tuple(
        Cursor(topic=row[0], name=row[1], mark=(row[2], row[3]), acknowledged=row[4], snapshot=row[5])
        for row in connection.execute(query)
    )


def _schemas(connection: sqlite3.Connection) -> tuple[Schema, ...]:
    query = (
        "SELECT t.name, s.version, s.ledger_id, s.digest FROM schema_version s"
        " JOIN topic t ON t.topic_id = s.topic_id ORDER BY s.topic_id, s.version"
    )
    names = ("topic", "version", "ledger_id", "digest")
    return tuple(Schema(**dict(zip(names, row, strict=True))) for row in connection.execute(query))


def _prefix(ledger_id: int) -> str:
    return f"ledgers/{ledger_id % 256:02x}/{ledger_id:016x}/"


def _meta_name(ledger: Ledger) -> str:
    """Worked out from the format's description: first 16 hex digits of SHA-256 over the owner's statement."""
    keys = [[name, ledger.keys[name]] for name in sorted(ledger.keys)]
    statement = [ledger.application, ledger.component, ledger.topic_id, ledger.topic, keys]
    return hashlib.sha256(json.dumps(statement, separators=(",", ":")).encode()).hexdigest()[:16] + ".meta.json"


def wrong_at_any_moment(seen: Seen) -> list[str]:
    """What no crash may leave behind, not even for a moment (apache/pulsar#13526)."""
    return [
        *_forgotten(seen),
        *_both(seen),
        *_incomplete(seen),
        *_half_deleted(seen),
        *_foreign(seen),
        *_unnamed(seen),
        *_left_behind(seen),
        *wrong_tiered_at_any_moment(seen.tiered, seen.ledgers),
    ]


def _forgotten(seen: Seen) -> Iterator[str]:
    """Stored, and neither referenced, nor newborn, nor intended, nor a dead letter."""
    unfinished = seen.of_state("PENDING") | seen.of_state("DEAD_LETTERED")
    for ledger_id, names in sorted(seen.stored.items()):
        if not seen.tiered.has_primary(ledger_id) and ledger_id not in unfinished:
            yield f"ledger {ledger_id} is forgotten: nothing names it, and {sorted(names)} are stored"


def _both(seen: Seen) -> Iterator[str]:
    for ledger_id in sorted(seen.ledgers.keys() & seen.intents.keys()):
        if not seen.tiered.has_primary(ledger_id):
            continue
        yield f"ledger {ledger_id} has a row and a deletion intent at once"
    for ledger_id, ledger in sorted(seen.ledgers.items()):
        if not ledger.listed and ledger.state != "CREATING":
            yield f"ledger {ledger_id} is {ledger.state} and in no list"


def _incomplete(seen: Seen) -> Iterator[str]:
    """Listed, and its statement or a registered segment is missing, or its rows do not add up."""
    for ledger_id, ledger in sorted(seen.ledgers.items()):
        reached = 0
        for number, first, entries, size in ledger.segments:
            body = seen.objects.get(f"{_prefix(ledger_id)}{number:08d}.parquet")
            if seen.tiered.has_primary(ledger_id) and (body is None or len(body) != size):
                yield f"ledger {ledger_id}: segment {number} is registered, and lost or of another size"
            if first != reached:
                yield f"ledger {ledger_id}: segment {number} begins at {first}, expected {reached}"
            reached = first + entries
        if reached != ledger.entries:
            yield f"ledger {ledger_id}: its row says {ledger.entries} entries, its segments {reached}"
        if (
            ledger.listed
            and seen.tiered.has_primary(ledger_id)
            and f"{_prefix(ledger_id)}{_meta_name(ledger)}" not in seen.objects
        ):
            yield f"ledger {ledger_id} is listed without its own statement in storage"


def _half_deleted(seen: Seen) -> Iterator[str]:
    """Data without the statement that says whose it is: `meta.json` is written first and deleted last."""
    for ledger_id, names in sorted(seen.stored.items()):
        if not any(name.endswith(".meta.json") for name in names):
            yield f"ledger {ledger_id}: {sorted(names)} are stored without a meta.json"


def _foreign(seen: Seen) -> Iterator[str]:
    for key, body in seen.planted.items():
        if seen.objects.get(key) != body:
            yield f"{key} belongs to another application and was touched"


def _unnamed(seen: Seen) -> Iterator[str]:
    """A component's ledger is listed just as long as a row needs it: never lost (#20638), never leaked (#982)."""
    needed = {it.snapshot: (it.topic, "MANAGED_CURSOR", {"cursor": it.name}) for it in seen.cursors}
    needed |= {it.ledger_id: (it.topic, "SCHEMA_STORAGE", {"schema": it.topic}) for it in seen.schemas}
    needed |= {ledger_id: (topic, "TXN_SNAPSHOT", {}) for ledger_id, topic in seen.snapshots.items()}
    needed |= {ledger_id: (topic, "DELAYED_INDEX", {}) for ledger_id, topic in seen.buckets.items()}
    needed.pop(None, None)
    listed = {
        row: (it.topic, it.component, dict(it.keys))
        for row, it in seen.ledgers.items()
        if it.component != "MANAGED_LEDGER" and it.listed
    }
    for ledger_id in sorted({row for row in {*needed, *listed} if row is not None}):
        if needed.get(ledger_id) != listed.get(ledger_id):
            yield f"ledger {ledger_id}: needed as {needed.get(ledger_id)}, listed as {listed.get(ledger_id)}"
    for it in seen.schemas:
        if hashlib.sha256(seen.content(it.ledger_id)).hexdigest() != it.digest:
            yield f"{it.topic}: schema {it.version} in ledger {it.ledger_id} is not what was set"


def _left_behind(seen: Seen) -> Iterator[str]:
    """Rows of a topic that is gone: what hangs on it goes in the transaction that removes it."""
    for table, topics in seen.attached.items():
        for topic_id in sorted(topics - seen.topics.keys()):
            yield f"{table} has rows of topic {topic_id}, which does not exist"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What is true of a topic once all work has ended."""

    first_kept: Sequence  # of the entries that must still be readable
    written: int  # entries in all, of one producer
    hole: range = range(0)  # entries of a ledger that was deleted out of the middle
    dead_letters: int = 0
    holed: Mapping[str, frozenset[Sequence]] = field(default_factory=dict)  # acknowledged beyond mark, by subscription
    schemas: tuple[bytes, ...] = ()
    gone: bool = False  # the topic itself was deleted


def wrong_at_rest(seen: Seen, expected: Mapping[str, Expected]) -> list[str]:
    """What must not be so once every job has ended, on top of what never may."""
    return [
        *wrong_at_any_moment(seen),
        *wrong_tiered_at_rest(seen.tiered),
        *_unfinished(seen),
        *_miscounted(seen),
        *(sentence for topic, one in expected.items() for sentence in _unlike(seen, topic, one)),
    ]


def _unfinished(seen: Seen) -> Iterator[str]:
    for ledger_id in sorted(seen.of_state("PENDING")):
        yield f"ledger {ledger_id}: its intent is unfinished"
    for ledger_id in sorted(seen.of_state("DEAD_LETTERED")):
        if not seen.intents[ledger_id].error:
            yield f"ledger {ledger_id} is a dead letter without a reason"
    for ledger_id in sorted(seen.of_state("DELETED") & seen.stored.keys()):
        yield f"ledger {ledger_id} is said to be deleted, and {sorted(seen.stored[ledger_id])} are stored"
    for ledger_id, ledger in sorted(seen.ledgers.items()):
        if not ledger.listed:
            yield f"ledger {ledger_id} was never attached and nobody took it away"
    alive = {intent.batch_id for intent in seen.intents.values()}  # what lost all its rows to others has nothing to say
    for batch_id in sorted(name for name, finished in seen.batches.items() if not finished and name in alive):
        yield f"batch {batch_id} was not certified"
    if LONG_GONE in seen.intents:
        yield f"ledger {LONG_GONE} went long ago, and its row was not forgotten"


_REPEATED = {"unload", "pass-over-segments"}
"""Acts of which a job has several: one for each page or bundle, and one more for each attempt that was repeated."""


def _miscounted(seen: Seen) -> Iterator[str]:
    """The audit log: one row for each act, and no act without its intents."""
    acts = Counter(
        (act, workflow_id) for act, workflow_id, _ in seen.audit if act not in _REPEATED | {"retire", "detach"}
    )
    acts += Counter(  # topics may share a batch
        (act, f"{workflow_id} from ledger {detail['first']} on")
        for act, workflow_id, detail in seen.audit
        if act == "detach"
    )
    acts += Counter(("retire", f"ledger {detail['ledger']}") for act, _, detail in seen.audit if act == "retire")
    again = sum(act == "redrive" for act, _, _ in seen.audit)  # a dead letter may end as one once more
    for (act, what), count in acts.items():
        if count > 1 + (again if act == "delete-ledger" else 0):
            yield f"{act} of {what} was audited {count} times"
    retired = {detail["ledger"] for act, _, detail in seen.audit if act == "retire"}
    told = [detail for act, _, detail in seen.audit if act == "detach"]
    audited = {ledger_id for detail in told for ledger_id in _detached(seen, detail)}
    if sum(detail["ledgers"] for detail in told) != len(audited):
        yield "a ledger was detached twice, or was counted and not"
    if audited - seen.intents.keys():
        yield f"detached and without an intent: {sorted(audited - seen.intents.keys())}"
    removed = {row for act, _, detail in seen.audit if act == "remove-primaries" for row in detail["sample"]}
    for ledger_id in sorted(seen.intents.keys() - audited - removed - retired):
        if seen.intents[ledger_id].segments:
            yield f"ledger {ledger_id} left its list without a word in the audit log"
    yield from _miscertified(seen)


def _miscertified(seen: Seen) -> Iterator[str]:
    """A batch counts each of its rows; only a redrive may have taken some from it since."""
    per_batch = Counter(intent.batch_id for intent in seen.intents.values())
    per_batch += Counter(intent.batch_id for intent in seen.tiered.intents)
    moved = sum(detail["rows"] for act, _, detail in seen.audit if act == "redrive")
    for act, workflow_id, detail in seen.audit:
        batch_id = workflow_id.removeprefix("delete-ledgers/")
        left = sum(detail.get("outcomes", {}).values()) - per_batch[batch_id]
        if act == "delete-ledgers" and not 0 <= left <= moved:
            yield f"batch {batch_id} was certified as {detail['outcomes']}, and has {per_batch[batch_id]} intents"


def _detached(seen: Seen, detail: dict[str, Any]) -> Iterator[int]:
    """Ids that an audit row speaks of: its sample, or, where that is capped, what lies between first and last."""
    whole = len(detail["sample"]) == detail["ledgers"]
    yield from (
        detail["sample"] if whole else (row for row in seen.intents if _is_data_between(seen.intents[row], row, detail))
    )


def _is_data_between(intent: Intent, ledger_id: int, detail: dict[str, Any]) -> bool:
    within = detail["first"] <= ledger_id <= detail["last"]
    return bool(within and intent.segments and intent.component == "MANAGED_LEDGER")


def _unlike(seen: Seen, topic: str, expected: Expected) -> Iterator[str]:
    if expected.gone == (topic in seen.topics.values()):
        yield f"{topic}: expected {'no topic of that name' if expected.gone else 'the topic'}, found {seen.topics}"
    found = [entry for ledger_id in seen.listed(topic) for entry in seen.entries(ledger_id)]
    wanted = [number for number in range(expected.first_kept, expected.written) if number not in expected.hole]
    numbers = [number for _, number, _ in found]
    if numbers != wanted:
        yield f"{topic}: expected entries {wanted}, found {numbers}"
    if any(payload != payload_of(topic, number) for _, number, payload in found):
        yield f"{topic}: an entry reads differently from what was written"
    dead = [row for row in seen.of_state("DEAD_LETTERED") if seen.intents[row].topic == topic]
    if len(dead) != expected.dead_letters:
        yield f"{topic}: expected {expected.dead_letters} dead letters, found ledgers {dead}"
    yield from _otherwise_acknowledged(seen, topic, expected)
    schemas = [seen.content(it.ledger_id) for it in seen.schemas if it.topic == topic]
    if schemas != [*expected.schemas]:
        yield f"{topic}: expected schemas {expected.schemas}, found {schemas}"


def _otherwise_acknowledged(seen: Seen, topic: str, expected: Expected) -> Iterator[str]:
    """What is acknowledged beyond a mark: nothing lost and nothing invented (apache/pulsar#20638)."""
    for cursor in (it for it in seen.cursors if it.topic == topic):
        entries = seen.acknowledged(cursor)
        numbers = {seen.entries(ledger_id)[entry][1] for ledger_id, entry in entries}
        wanted = expected.holed.get(cursor.name, frozenset())
        if numbers != wanted:
            yield f"{topic}: {cursor.name} has acknowledged {sorted(numbers)}, expected {sorted(wanted)}"


def payload_of(topic: str, number: Sequence) -> bytes:
    """What the tests' producers write under a sequence id."""
    return f"{topic} {number}".encode()
