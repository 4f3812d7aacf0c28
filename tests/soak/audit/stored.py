"""Promises 1, 2, 3 and 5 on what is stored, referenced and intended."""

from collections.abc import Iterator, Sequence
from typing import Final

from tests.soak.audit.delivered import passed
from tests.soak.audit.ended import ended, may_return
from tests.soak.audit.evidence import PRIMARY, PRIMARY_KEY, TIERED, TIERED_KEY, At, Evidence, prefix
from tests.soak.scene import CONSUMED, DELAYED, PLAIN

_GONE = {"DELETED", "ALREADY_GONE"}
_NAMES = (
    ("cursor", "snapshot_ledger", "MANAGED_CURSOR"),
    ("schema_version", "ledger_id", "SCHEMA_STORAGE"),
    ("delayed_bucket", "ledger_id", "DELAYED_INDEX"),
    ("transaction_snapshot", "ledger_id", "TXN_SNAPSHOT"),
)
"""Tables whose rows name ledgers of a component."""


def stored(seen: Evidence) -> dict[int, set[str]]:
    """Names of objects below each ledger's prefix."""
    found: dict[int, set[str]] = {}
    for key in seen.objects[PRIMARY]:
        at = PRIMARY_KEY.fullmatch(key)
        if at and (PRIMARY, key) not in seen.planted:
            found.setdefault(int(at["id"], 16), set()).add(at["name"])
    return found


def stored_tiered(seen: Evidence) -> set[tuple[int, str]]:
    """Ledger and uuid of each tiered copy of which there is an object or a part."""
    keys = [key for key in (*seen.objects[TIERED], *seen.uploads) if (TIERED, key) not in seen.planted]
    return {(int(at["id"]), at["uuid"]) for key in keys if (at := TIERED_KEY.fullmatch(key))}


def not_whole(seen: Evidence) -> Iterator[str]:
    """1: what is listed is in storage, all of it, by one copy at least."""
    for ledger_id, row in sorted(seen.ledgers.items()):
        if row["place"] is None:
            continue
        copies = [kind for kind in ("LEDGER", "OFFLOADED_LEDGER") if _live(seen, ledger_id, kind)]
        if not copies:
            yield f"ledger {ledger_id} is listed and has no copy"
        if "LEDGER" in copies:
            yield from _primary_lacks(seen, ledger_id)
        if "OFFLOADED_LEDGER" in copies:
            uuid = seen.copies[ledger_id, "OFFLOADED_LEDGER"]["context"]["uuid"]
            names = (f"{uuid}-ledger-{ledger_id}", f"{uuid}-ledger-{ledger_id}-index")
            yield from (f"ledger {ledger_id}: {name} is lost" for name in names if name not in seen.objects[TIERED])
        reached = 0
        for segment in seen.segments.get(ledger_id, ()):
            first = segment["first_entry"]
            if first != reached:
                yield f"ledger {ledger_id}: segment {segment['number']} begins at {first}, not {reached}"
            reached = first + segment["entries"]
        if reached != row["entries"]:
            yield f"ledger {ledger_id}: its row says {row['entries']} entries, its segments {reached}"


def _live(seen: Evidence, ledger_id: int, kind: str) -> bool:
    copy = seen.copies.get((ledger_id, kind))
    return copy is not None and copy["state"] == "LIVE"


def _primary_lacks(seen: Evidence, ledger_id: int) -> Iterator[str]:
    sizes = seen.objects[PRIMARY]
    if not any(name.endswith(".meta.json") for name in stored(seen).get(ledger_id, ())):
        yield f"ledger {ledger_id} is listed without its statement"
    for segment in seen.segments.get(ledger_id, ()):
        number, told = segment["number"], segment["size_bytes"]
        size = sizes.get(f"{prefix(ledger_id)}{number:08d}.parquet")
        if size != told:
            yield f"ledger {ledger_id}: segment {number} of {told} bytes is {size} in storage"


def wrong_needed(seen: Evidence) -> Iterator[str]:
    """1: what a cursor, a schema, a bucket or a snapshot of a transaction buffer names is listed, and holds that."""
    named = {
        row[column]: component
        for table, column, component in _NAMES
        for row in seen.rows(table)
        if row["topic_id"] not in may_return(seen)
    }
    named.pop(None, None)
    listed = {
        ledger_id: row["component"]
        for ledger_id, row in seen.ledgers.items()
        if row["component"] != "MANAGED_LEDGER" and row["place"] is not None
    }
    for ledger_id in sorted(named.keys() | listed.keys()):
        if named.get(ledger_id) != listed.get(ledger_id):
            yield f"ledger {ledger_id}: needed as {named.get(ledger_id)}, listed as {listed.get(ledger_id)}"
    for row in seen.rows("schema_version"):
        if row["topic_id"] not in may_return(seen) and seen.contents.get(row["ledger_id"]) != row["digest"]:
            yield f"schema {row['version']} of topic {row['topic_id']} is not what was set"


def lost_answered(seen: Evidence) -> Iterator[str]:
    """1: an entry whose append was answered stands where it was answered, unless every consumer was done with it."""
    consumed = {at for name in PLAIN for op in seen.acknowledgements(name, CONSUMED) for at in op.positions}
    both = {name: passed(op for op in seen.ops if op.asked.get("topic") == name) for name in DELAYED}
    for op in seen.of_kind("append"):
        name = op.asked["topic"]
        entries = seen.entries.get(seen.topics.get(name, -1), {})
        for at, payload in op.stored:
            found = entries.get(at)
            done = both[name](at) if name in both else at in consumed
            if found is None and not (done and _may_go(seen, name, at)):
                yield f"{name}: {at} was answered as stored, nobody may let it go, and it is gone"
            elif found is not None and found.payload != payload:
                yield f"{name}: {at} was answered for {payload!r} and holds {found.payload!r}"


def _may_go(seen: Evidence, name: str, at: At) -> bool:
    row = seen.ledgers.get(at[0])
    return name in PLAIN + DELAYED and (row is None or row["place"] is None)


_GAP: Final = 1 << 16  # a confirmation stands between one and two of these above the segment that it confirms


def _confirms(name: str, numbers: Sequence[int]) -> bool:
    """Whether an object may be a confirmation, which is deleted with its ledger."""
    number = name.removesuffix(".parquet")
    return number.isdecimal() and any(_GAP < int(number) - segment <= 2 * _GAP for segment in numbers)


def forgotten(seen: Evidence) -> Iterator[str]:
    """2: everything stored is referenced or intended, all that was intended has ended, and what ended is gone."""
    unfinished = {(row["ledger_id"], row["copy"]) for row in seen.intents if row["state"] != "DELETED"}
    for ledger_id, names in sorted(stored(seen).items()):
        if (ledger_id, "LEDGER") not in unfinished and (ledger_id, "LEDGER") not in seen.copies:
            yield f"ledger {ledger_id} is forgotten: nothing names it, and {sorted(names)[:5]} are stored"
        elif (ledger_id, "LEDGER") in seen.copies:
            numbers = [row["number"] for row in seen.segments.get(ledger_id, ())]
            registered = {f"{number:08d}.parquet" for number in numbers}
            others = sorted(name for name in names - registered if not name.endswith(".meta.json"))
            astray = [name for name in others if not _confirms(name, numbers)]
            if astray:
                yield f"ledger {ledger_id}: {astray[:5]} are stored, and no segment is of that number"
    live = {(row[0], copy["context"].get("uuid")) for row, copy in seen.copies.items() if row[1] == "OFFLOADED_LEDGER"}
    intended = {
        (row["ledger_id"], row["context"].get("uuid"))
        for row in seen.intents
        if row["copy"] == "OFFLOADED_LEDGER" and row["state"] != "DELETED"
    }
    for ledger_id, uuid in sorted(stored_tiered(seen) - live - intended):
        yield f"tiered copy {uuid} of ledger {ledger_id} is forgotten"
    for ledger_id, row in sorted(seen.ledgers.items()):
        if row["place"] is None:
            yield f"ledger {ledger_id} is {row['state']}, in no list, and nobody took it away"


def unfinished(seen: Evidence) -> Iterator[str]:
    """2: every deletion has ended; a dead letter says why."""
    for row in seen.intents:
        if row["state"] == "PENDING":
            yield f"the deletion of ledger {row['ledger_id']} ({row['copy']}) has not ended: {row['last_error']}"
        if row["state"] == "DEAD_LETTERED" and not row["last_error"]:
            yield f"ledger {row['ledger_id']} is a dead letter without a reason"
        if row["state"] == "DELETED" and row["outcome"] not in _GONE:
            yield f"the deletion of ledger {row['ledger_id']} ended as {row['outcome']} and is said to be done"
    yield from seen.waits


def touched(seen: Evidence) -> Iterator[str]:
    """3: objects of others are as they were; and nothing stands outside the places that are ours."""
    for where, body in seen.planted.items():
        if seen.planted_now.get(where) != body:
            yield f"{where[1]} in the {where[0]} bucket is not ours, and was touched"
    for key in seen.objects[PRIMARY]:
        if (PRIMARY, key) not in seen.planted and not PRIMARY_KEY.fullmatch(key):
            yield f"{key} was written to the primary bucket, and is no ledger's"
    for key in seen.objects[TIERED]:
        if (TIERED, key) not in seen.planted and not TIERED_KEY.fullmatch(key):
            yield f"{key} was written to the tiered bucket, and is no copy's"


def returned(seen: Evidence) -> Iterator[str]:
    """5: what was deleted is deleted, and durably deleted ledgers count for nothing in the record log either."""
    gone = {row["ledger_id"]: "by its intent" for row in seen.intents if row["copy"] == "LEDGER" and row["durable"]}
    gone |= {row["id"]: "by its tombstone" for row in seen.rows("tombstone") if row["kind"] == "ledger"}
    for ledger_id, durable in sorted(ended(seen).items()):
        if durable and seen.recorded.get(("ledger", ledger_id)):
            yield f"ledger {ledger_id} was durably deleted, and its newest record lives"
        if ledger_id in seen.ledgers:
            yield f"ledger {ledger_id} was answered as ended, and is in the catalog"
        if ledger_id in stored(seen) and not _dead_letter(seen, ledger_id):
            yield f"ledger {ledger_id} was answered as ended, and is stored"
    for ledger_id in sorted(gone.keys() & {one for one in seen.ledgers if not _only_a_copy_went(seen, one)}):
        yield f"ledger {ledger_id} was deleted, {gone[ledger_id]}, and is in the catalog"
    for ledger_id in sorted(gone.keys() & stored(seen).keys()):
        if not _dead_letter(seen, ledger_id):
            yield f"ledger {ledger_id} was deleted, {gone[ledger_id]}, and is stored"
    for op in seen.of_kind("delete-topic"):
        if op.end == "done" and not op.answer.get("refused") and op.asked["topic_id"] not in may_return(seen):
            yield from _left_of_topic(seen, op.asked["topic"], op.asked["topic_id"])


def _only_a_copy_went(seen: Evidence, ledger_id: int) -> bool:
    """Whether the ledger lives on by its tiered copy."""
    return (ledger_id, "OFFLOADED_LEDGER") in seen.copies


def _dead_letter(seen: Evidence, ledger_id: int) -> bool:
    return any(row["ledger_id"] == ledger_id and row["state"] == "DEAD_LETTERED" for row in seen.intents)


def _left_of_topic(seen: Evidence, name: str, topic_id: int) -> Iterator[str]:
    if topic_id in seen.topics.values():
        yield f"{name} was deleted and is a topic"
    for table in ("ledger_list", "cursor", "schema_version", "delayed_index", "transaction_snapshot"):
        if any(row["topic_id"] == topic_id for row in seen.rows(table)):
            yield f"{name} was deleted, and {table} has rows of it"


def unrecorded(seen: Evidence) -> Iterator[str]:
    """5: after the last flush the record log knows every ledger and topic of the catalog, and every tombstone."""
    for ledger_id in sorted(seen.ledgers):
        if not seen.recorded.get(("ledger", ledger_id)):
            yield f"ledger {ledger_id} is in the catalog, and the record log does not know it"
    for name, topic_id in seen.topics.items():
        if not seen.recorded.get(("topic", topic_id)):
            yield f"{name} is in the catalog, and the record log does not know it"
    for row in seen.rows("tombstone"):
        if seen.recorded.get((row["kind"], row["id"]), True):
            yield f"the tombstone of {row['kind']} {row['id']} is not in the record log"
    if seen.rows("record_outbox"):
        yield f"{len(seen.rows('record_outbox'))} changes were never flushed"
