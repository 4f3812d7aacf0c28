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

from tests.faults.tiered_auditor import (
    TieredObservation,
    find_tiered_violations_at_any_moment,
    find_tiered_violations_at_rest,
    observe_tiered_bucket,
)

_KEY = re.compile(r"ledgers/(?P<shard>[0-9a-f]{2})/(?P<id>[0-9a-f]{16})/(?P<name>.+)")
_SEGMENT = re.compile(r"(?P<number>[0-9]{8})\.parquet")
_TABLES_OUTLIVING_TOPICS = {"pending_deletion", "tombstone", "run", "audit", "transaction_participant"}
"""Tables that may name a topic that is gone."""
_COMPARED_QUERIES = (
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

LONG_GONE_LEDGER = 999_999
"""A ledger whose deletion ended long ago: the only one that is old enough to be forgotten."""

SequenceId = int
"""What a test's producer numbers its entries with: 0, 1, 2, … on every topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedLedger:
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
class AuditedIntent:
    """A row of `pending_deletion`."""

    topic: str
    batch_id: str
    state: str
    outcome: str | None
    error: str | None
    segments: int
    component: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedCursor:
    """A row of `cursor`."""

    topic: str
    name: str
    mark: tuple[int, int]
    acknowledged: bytes  # beyond its snapshot
    snapshot: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedSchema:
    """A row of `schema_version`."""

    topic: str
    version: int
    ledger_id: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Storage and catalog at one moment."""

    objects: Mapping[str, bytes]
    planted: Mapping[str, bytes]  # what others put there, as it was
    ledgers: Mapping[int, AuditedLedger]
    intents: Mapping[int, AuditedIntent]
    cursors: tuple[AuditedCursor, ...]
    schemas: tuple[AuditedSchema, ...]
    snapshots: Mapping[int, str]  # of transaction buffers: topics by ledger
    buckets: Mapping[int, str]  # of delayed messages, the same
    batches: Mapping[str, bool]  # batch id -> finished
    audit: tuple[tuple[str, str, dict[str, Any]], ...]  # act, workflow id, detail
    topics: Mapping[int, str]  # names by topic id
    attached: Mapping[str, set[int]]  # topic ids that other tables name, by table
    tiered: TieredObservation
    rows: str  # everything that work done twice must not change, as text

    @property
    def stored(self) -> dict[int, list[str]]:
        """Names of objects below each ledger's prefix, planted ones left out."""
        names_by_ledger: dict[int, list[str]] = {}
        for key in self.objects.keys() - self.planted.keys():
            match = _KEY.fullmatch(key)
            assert match, f"Sexton wrote a key that is no ledger's: {key}"
            ledger_id = int(match["id"], 16)
            assert int(match["shard"], 16) == ledger_id % 256, f"{key} stands in the wrong shard"
            names_by_ledger.setdefault(ledger_id, []).append(match["name"])
        return names_by_ledger

    def listed(self, topic: str, component: str = "MANAGED_LEDGER") -> list[int]:
        """Ids of a topic's lists of a component, ascending."""
        ledger_items = self.ledgers.items()
        return sorted(
            ledger_id
            for ledger_id, ledger in ledger_items
            if (ledger.topic, ledger.component) == (topic, component) and ledger.listed
        )

    def ledgers_with_intent_state(self, state: str) -> set[int]:
        """Ids of intents in a state."""
        return {ledger_id for ledger_id, intent in self.intents.items() if intent.state == state}

    def entries(self, ledger_id: int) -> list[tuple[str | None, SequenceId, bytes]]:
        """Producer, sequence and payload of every entry of a ledger in order, read from its objects."""
        columns = ["producer", "sequence_id", "payload"]
        rows: list[dict[str, Any]] = []
        if not self.tiered.has_primary(ledger_id):
            rows = self.tiered.data(ledger_id).read(columns).to_pylist()
        else:
            for number, *_ in self.ledgers[ledger_id].segments:
                body = self.objects[f"{_prefix(ledger_id)}{number:08d}.parquet"]
                rows += pq.read_table(io.BytesIO(body), columns=columns).to_pylist()
        return [(row["producer"], row["sequence_id"], row["payload"]) for row in rows]

    def content(self, ledger_id: int) -> bytes:
        """The one payload of a component's ledger, read from its object."""
        body = self.objects[f"{_prefix(ledger_id)}00000000.parquet"]
        (payload,) = pq.read_table(io.BytesIO(body), columns=["payload"]).column("payload").to_pylist()
        return bytes(payload)

    def acknowledged(self, cursor: AuditedCursor) -> set[tuple[int, int]]:
        """Entries beyond the mark that a cursor has acknowledged, by its row or by its snapshot."""
        packed = [cursor.acknowledged, *([] if cursor.snapshot is None else [self.content(cursor.snapshot)])]
        return {entry for part in packed for entry in unpack_acknowledged_entries(part) if entry > cursor.mark}


def unpack_acknowledged_entries(packed: bytes) -> Iterator[tuple[int, int]]:
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
    tiered_objects: Mapping[str, bytes],
    open_upload_keys: Collection[str],
) -> Observation:
    """Read everything there is."""
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        connection.execute("BEGIN")  # one moment
        segments: dict[int, list[tuple[int, int, int, int]]] = {}
        for ledger_id, *segment_columns in connection.execute(
            "SELECT ledger_id, number, first_entry, entries, size_bytes FROM segment ORDER BY ledger_id, number"
        ):
            segments.setdefault(ledger_id, []).append(
                (segment_columns[0], segment_columns[1], segment_columns[2], segment_columns[3])
            )
        ledgers = {
            row[0]: AuditedLedger(
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
        return Observation(
            objects=dict(objects),
            planted=planted,
            ledgers=ledgers,
            intents=_read_primary_intents(connection),
            cursors=_read_cursors(connection),
            schemas=_read_schemas(connection),
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
            attached=_read_topic_ids_by_table(connection),
            tiered=observe_tiered_bucket(connection, tiered_objects, open_upload_keys),
            rows="\n".join(repr(connection.execute(query).fetchall()) for query in _COMPARED_QUERIES),
        )


def _read_topic_ids_by_table(connection: sqlite3.Connection) -> dict[str, set[int]]:
    """Which topics rows speak of, in every table that can: tables that come later are met here too."""
    query = (
        "SELECT m.name FROM sqlite_master m JOIN pragma_table_info(m.name) c"
        " WHERE m.type = 'table' AND c.name = 'topic_id'"
    )
    tables = {row[0] for row in connection.execute(query)} - _TABLES_OUTLIVING_TOPICS
    topic_ids_by_table = {
        name: {row[0] for row in connection.execute(f"SELECT topic_id FROM {name}")} for name in sorted(tables)
    }
    unlisted = "SELECT list_id FROM ledger WHERE list_id NOT IN (SELECT list_id FROM ledger_list)"
    assert not connection.execute(unlisted).fetchall(), "ledgers of a list that does not exist"
    return topic_ids_by_table


def _read_primary_intents(connection: sqlite3.Connection) -> dict[int, AuditedIntent]:
    """Of primary copies; those of tiered ones are in `Seen.tiered`."""
    query = "SELECT ledger_id, topic, batch_id, state, outcome, last_error, segments, component FROM pending_deletion"
    query += " WHERE copy = 'LEDGER'"
    rows = connection.execute(query).fetchall()
    names = ("topic", "batch_id", "state", "outcome", "error", "segments", "component")
    intent_by_ledger = {row[0]: AuditedIntent(**dict(zip(names, row[1:], strict=True))) for row in rows}
    assert len(intent_by_ledger) == len(rows), "two intents for the one copy of a ledger"
    return intent_by_ledger


def _read_cursors(connection: sqlite3.Connection) -> tuple[AuditedCursor, ...]:
    query = (
        "SELECT t.name, c.name, c.mark_ledger, c.mark_entry, c.acknowledged, c.snapshot_ledger FROM cursor c"
        " JOIN topic t ON t.topic_id = c.topic_id ORDER BY c.cursor_id"
    )
    return tuple(
        AuditedCursor(topic=row[0], name=row[1], mark=(row[2], row[3]), acknowledged=row[4], snapshot=row[5])
        for row in connection.execute(query)
    )


def _read_schemas(connection: sqlite3.Connection) -> tuple[AuditedSchema, ...]:
    query = (
        "SELECT t.name, s.version, s.ledger_id, s.digest FROM schema_version s"
        " JOIN topic t ON t.topic_id = s.topic_id ORDER BY s.topic_id, s.version"
    )
    names = ("topic", "version", "ledger_id", "digest")
    return tuple(AuditedSchema(**dict(zip(names, row, strict=True))) for row in connection.execute(query))


def _prefix(ledger_id: int) -> str:
    return f"ledgers/{ledger_id % 256:02x}/{ledger_id:016x}/"


def _meta_name(ledger: AuditedLedger) -> str:
    """Worked out from the format's description: first 16 hex digits of SHA-256 over the owner's statement."""
    keys = [[name, ledger.keys[name]] for name in sorted(ledger.keys)]
    statement = [ledger.application, ledger.component, ledger.topic_id, ledger.topic, keys]
    return hashlib.sha256(json.dumps(statement, separators=(",", ":")).encode()).hexdigest()[:16] + ".meta.json"


def find_violations_at_any_moment(observation: Observation) -> list[str]:
    """What no crash may leave behind, not even for a moment (apache/pulsar#13526)."""
    return [
        *_find_forgotten_ledgers(observation),
        *_find_ledgers_with_row_and_intent(observation),
        *_find_incomplete_ledgers(observation),
        *_find_ledgers_without_statement(observation),
        *_find_touched_foreign_objects(observation),
        *_find_unnamed_component_ledgers(observation),
        *_find_rows_of_removed_topics(observation),
        *find_tiered_violations_at_any_moment(observation.tiered, observation.ledgers),
    ]


def _find_forgotten_ledgers(observation: Observation) -> Iterator[str]:
    """Stored, and neither referenced, nor newborn, nor intended, nor a dead letter."""
    unfinished = observation.ledgers_with_intent_state("PENDING") | observation.ledgers_with_intent_state(
        "DEAD_LETTERED"
    )
    for ledger_id, names in sorted(observation.stored.items()):
        if not observation.tiered.has_primary(ledger_id) and ledger_id not in unfinished:
            yield f"ledger {ledger_id} is forgotten: nothing names it, and {sorted(names)} are stored"


def _find_ledgers_with_row_and_intent(observation: Observation) -> Iterator[str]:
    for ledger_id in sorted(observation.ledgers.keys() & observation.intents.keys()):
        if not observation.tiered.has_primary(ledger_id):
            continue
        yield f"ledger {ledger_id} has a row and a deletion intent at once"
    for ledger_id, ledger in sorted(observation.ledgers.items()):
        if not ledger.listed and ledger.state != "CREATING":
            yield f"ledger {ledger_id} is {ledger.state} and in no list"


def _find_incomplete_ledgers(observation: Observation) -> Iterator[str]:
    """Listed, and its statement or a registered segment is missing, or its rows do not add up."""
    for ledger_id, ledger in sorted(observation.ledgers.items()):
        next_entry = 0
        for number, first_entry, entries, size in ledger.segments:
            body = observation.objects.get(f"{_prefix(ledger_id)}{number:08d}.parquet")
            if observation.tiered.has_primary(ledger_id) and (body is None or len(body) != size):
                yield f"ledger {ledger_id}: segment {number} is registered, and lost or of another size"
            if first_entry != next_entry:
                yield f"ledger {ledger_id}: segment {number} begins at {first_entry}, expected {next_entry}"
            next_entry = first_entry + entries
        if next_entry != ledger.entries:
            yield f"ledger {ledger_id}: its row says {ledger.entries} entries, its segments {next_entry}"
        if (
            ledger.listed
            and observation.tiered.has_primary(ledger_id)
            and f"{_prefix(ledger_id)}{_meta_name(ledger)}" not in observation.objects
        ):
            yield f"ledger {ledger_id} is listed without its own statement in storage"


def _find_ledgers_without_statement(observation: Observation) -> Iterator[str]:
    """Data without the statement that says whose it is: `meta.json` is written first and deleted last."""
    for ledger_id, names in sorted(observation.stored.items()):
        if not any(name.endswith(".meta.json") for name in names):
            yield f"ledger {ledger_id}: {sorted(names)} are stored without a meta.json"


def _find_touched_foreign_objects(observation: Observation) -> Iterator[str]:
    for key, body in observation.planted.items():
        if observation.objects.get(key) != body:
            yield f"{key} belongs to another application and was touched"


def _find_unnamed_component_ledgers(observation: Observation) -> Iterator[str]:
    """A component's ledger is listed just as long as a row needs it: never lost (#20638), never leaked (#982)."""
    needed = {
        audited_row.snapshot: (audited_row.topic, "MANAGED_CURSOR", {"cursor": audited_row.name})
        for audited_row in observation.cursors
    }
    needed |= {
        audited_row.ledger_id: (audited_row.topic, "SCHEMA_STORAGE", {"schema": audited_row.topic})
        for audited_row in observation.schemas
    }
    needed |= {ledger_id: (topic, "TXN_SNAPSHOT", {}) for ledger_id, topic in observation.snapshots.items()}
    needed |= {ledger_id: (topic, "DELAYED_INDEX", {}) for ledger_id, topic in observation.buckets.items()}
    needed.pop(None, None)
    listed = {
        row: (audited_row.topic, audited_row.component, dict(audited_row.keys))
        for row, audited_row in observation.ledgers.items()
        if audited_row.component != "MANAGED_LEDGER" and audited_row.listed
    }
    for ledger_id in sorted({row for row in {*needed, *listed} if row is not None}):
        if needed.get(ledger_id) != listed.get(ledger_id):
            yield f"ledger {ledger_id}: needed as {needed.get(ledger_id)}, listed as {listed.get(ledger_id)}"
    for audited_row in observation.schemas:
        if hashlib.sha256(observation.content(audited_row.ledger_id)).hexdigest() != audited_row.digest:
            schema = f"schema {audited_row.version} in ledger {audited_row.ledger_id}"
            yield f"{audited_row.topic}: {schema} is not what was set"


def _find_rows_of_removed_topics(observation: Observation) -> Iterator[str]:
    """Rows of a topic that is gone: what hangs on it goes in the transaction that removes it."""
    for table, topics in observation.attached.items():
        for topic_id in sorted(topics - observation.topics.keys()):
            yield f"{table} has rows of topic {topic_id}, which does not exist"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTopic:
    """What is true of a topic once all work has ended."""

    first_kept_sequence: SequenceId  # of the entries that must still be readable
    written: int  # entries in all, of one producer
    hole: range = range(0)  # entries of a ledger that was deleted out of the middle
    dead_letters: int = 0
    holed: Mapping[str, frozenset[SequenceId]] = field(
        default_factory=dict
    )  # acknowledged beyond mark, by subscription
    schemas: tuple[bytes, ...] = ()
    gone: bool = False  # the topic itself was deleted


def find_violations_at_rest(observation: Observation, expected: Mapping[str, ExpectedTopic]) -> list[str]:
    """What must not be so once every job has ended, on top of what never may."""
    return [
        *find_violations_at_any_moment(observation),
        *find_tiered_violations_at_rest(observation.tiered),
        *_find_unfinished_work(observation),
        *_find_audit_log_errors(observation),
        *(
            sentence
            for topic, expected_topic in expected.items()
            for sentence in _compare_topic(observation, topic, expected_topic)
        ),
    ]


def _find_unfinished_work(observation: Observation) -> Iterator[str]:
    for ledger_id in sorted(observation.ledgers_with_intent_state("PENDING")):
        yield f"ledger {ledger_id}: its intent is unfinished"
    for ledger_id in sorted(observation.ledgers_with_intent_state("DEAD_LETTERED")):
        if not observation.intents[ledger_id].error:
            yield f"ledger {ledger_id} is a dead letter without a reason"
    for ledger_id in sorted(observation.ledgers_with_intent_state("DELETED") & observation.stored.keys()):
        yield f"ledger {ledger_id} is said to be deleted, and {sorted(observation.stored[ledger_id])} are stored"
    for ledger_id, ledger in sorted(observation.ledgers.items()):
        if not ledger.listed:
            yield f"ledger {ledger_id} was never attached and nobody took it away"
    batches_with_intents = {
        intent.batch_id for intent in observation.intents.values()
    }  # what lost all its rows to others has nothing to say
    for batch_id in sorted(
        name for name, finished in observation.batches.items() if not finished and name in batches_with_intents
    ):
        yield f"batch {batch_id} was not certified"
    if LONG_GONE_LEDGER in observation.intents:
        yield f"ledger {LONG_GONE_LEDGER} went long ago, and its row was not forgotten"


_REPEATABLE_ACTS = {"unload", "pass-over-segments", "abort-transactions", "aborted-transactions"} | {
    f"{verb}-cluster-plan" for verb in ("apply", "applied", "undo", "undone")
}
"""Acts of which a job has several: one for each page or bundle, and one more for each attempt that was repeated."""


def _find_audit_log_errors(observation: Observation) -> Iterator[str]:
    """The audit log: one row for each act, and no act without its intents."""
    acts = Counter(
        (act, workflow_id)
        for act, workflow_id, _ in observation.audit
        if act not in _REPEATABLE_ACTS | {"retire", "detach"}
    )
    acts += Counter(  # topics may share a batch
        (act, f"{workflow_id} from ledger {detail['first']} on")
        for act, workflow_id, detail in observation.audit
        if act == "detach"
    )
    acts += Counter(("retire", f"ledger {detail['ledger']}") for act, _, detail in observation.audit if act == "retire")
    redrive_count = sum(act == "redrive" for act, _, _ in observation.audit)  # a dead letter may end as one once more
    for (act, subject), count in acts.items():
        if count > 1 + (redrive_count if act == "delete-ledger" else 0):
            yield f"{act} of {subject} was audited {count} times"
    retired = {detail["ledger"] for act, _, detail in observation.audit if act == "retire"}
    detach_details = [detail for act, _, detail in observation.audit if act == "detach"]
    detached_ledgers = {
        ledger_id for detail in detach_details for ledger_id in _audited_ledger_ids(observation, detail)
    }
    if sum(detail["ledgers"] for detail in detach_details) != len(detached_ledgers):
        yield "a ledger was detached twice, or was counted and not"
    if detached_ledgers - observation.intents.keys():
        yield f"detached and without an intent: {sorted(detached_ledgers - observation.intents.keys())}"
    removed = {row for act, _, detail in observation.audit if act == "remove-primaries" for row in detail["sample"]}
    for ledger_id in sorted(observation.intents.keys() - detached_ledgers - removed - retired):
        if observation.intents[ledger_id].segments:
            yield f"ledger {ledger_id} left its list without a word in the audit log"
    yield from _find_wrong_batch_certificates(observation)


def _find_wrong_batch_certificates(observation: Observation) -> Iterator[str]:
    """A batch counts each of its rows; only a redrive may have taken some from it since."""
    per_batch = Counter(intent.batch_id for intent in observation.intents.values())
    per_batch += Counter(intent.batch_id for intent in observation.tiered.intents)
    moved = sum(detail["rows"] for act, _, detail in observation.audit if act == "redrive")
    for act, workflow_id, detail in observation.audit:
        batch_id = workflow_id.removeprefix("delete-ledgers/")
        certified_surplus = sum(detail.get("outcomes", {}).values()) - per_batch[batch_id]
        if act == "delete-ledgers" and not 0 <= certified_surplus <= moved:
            yield f"batch {batch_id} was certified as {detail['outcomes']}, and has {per_batch[batch_id]} intents"


def _audited_ledger_ids(observation: Observation, detail: dict[str, Any]) -> Iterator[int]:
    """Ids that an audit row speaks of: its sample, or, where that is capped, what lies between first and last."""
    is_sample_complete = len(detail["sample"]) == detail["ledgers"]
    yield from (
        detail["sample"]
        if is_sample_complete
        else (row for row in observation.intents if _is_data_between(observation.intents[row], row, detail))
    )


def _is_data_between(intent: AuditedIntent, ledger_id: int, detail: dict[str, Any]) -> bool:
    within = detail["first"] <= ledger_id <= detail["last"]
    return bool(within and intent.segments and intent.component == "MANAGED_LEDGER")


def _compare_topic(observation: Observation, topic: str, expected: ExpectedTopic) -> Iterator[str]:
    if expected.gone == (topic in observation.topics.values()):
        wanted = "no topic of that name" if expected.gone else "the topic"
        yield f"{topic}: expected {wanted}, found {observation.topics}"
    entries = [entry for ledger_id in observation.listed(topic) for entry in observation.entries(ledger_id)]
    expected_numbers = [
        number for number in range(expected.first_kept_sequence, expected.written) if number not in expected.hole
    ]
    numbers = [number for _, number, _ in entries]
    if numbers != expected_numbers:
        yield f"{topic}: expected entries {expected_numbers}, found {numbers}"
    if any(payload != expected_payload(topic, number) for _, number, payload in entries):
        yield f"{topic}: an entry reads differently from what was written"
    dead_letters = [
        row for row in observation.ledgers_with_intent_state("DEAD_LETTERED") if observation.intents[row].topic == topic
    ]
    if len(dead_letters) != expected.dead_letters:
        yield f"{topic}: expected {expected.dead_letters} dead letters, found ledgers {dead_letters}"
    yield from _compare_acknowledgements(observation, topic, expected)
    schemas = [observation.content(schema.ledger_id) for schema in observation.schemas if schema.topic == topic]
    if schemas != [*expected.schemas]:
        yield f"{topic}: expected schemas {expected.schemas}, found {schemas}"


def _compare_acknowledgements(observation: Observation, topic: str, expected: ExpectedTopic) -> Iterator[str]:
    """What is acknowledged beyond a mark: nothing lost and nothing invented (apache/pulsar#20638)."""
    for cursor in (candidate for candidate in observation.cursors if candidate.topic == topic):
        entries = observation.acknowledged(cursor)
        numbers = {observation.entries(ledger_id)[entry][1] for ledger_id, entry in entries}
        expected_numbers = expected.holed.get(cursor.name, frozenset())
        if numbers != expected_numbers:
            yield f"{topic}: {cursor.name} has acknowledged {sorted(numbers)}, expected {sorted(expected_numbers)}"


def expected_payload(topic: str, number: SequenceId) -> bytes:
    """What the tests' producers write under a sequence id."""
    return f"{topic} {number}".encode()
