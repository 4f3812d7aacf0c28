"""Promises 1, 2, 3 and 5: what is stored, referenced and to be deleted."""

from collections.abc import Iterator, Sequence
from typing import Final

from tests.soak.audit.delivery_checks import make_passed_predicate
from tests.soak.audit.ended_ledger_checks import ledgers_answered_as_ended, topics_that_may_return
from tests.soak.audit.evidence import PRIMARY, PRIMARY_KEY, TIERED, TIERED_KEY, EntryPosition, Evidence, ledger_prefix
from tests.soak.soak_setup import CONSUMING_SUBSCRIPTION, DELAYED_TOPICS, PLAIN_TOPICS

_SUCCESS_OUTCOMES = {"DELETED", "ALREADY_GONE"}
_COMPONENT_REFERENCES = (
    ("cursor", "snapshot_ledger", "MANAGED_CURSOR"),
    ("schema_version", "ledger_id", "SCHEMA_STORAGE"),
    ("delayed_bucket", "ledger_id", "DELAYED_INDEX"),
    ("transaction_snapshot", "ledger_id", "TXN_SNAPSHOT"),
)
"""Tables whose rows name ledgers of a component."""


def object_names_by_ledger(evidence: Evidence) -> dict[int, set[str]]:
    """Return the names of objects below each ledger's prefix, without planted ones."""
    names: dict[int, set[str]] = {}
    for key in evidence.objects[PRIMARY]:
        match = PRIMARY_KEY.fullmatch(key)
        if match and (PRIMARY, key) not in evidence.planted:
            names.setdefault(int(match["id"], 16), set()).add(match["name"])
    return names


def list_tiered_copies(evidence: Evidence) -> set[tuple[int, str]]:
    """Return ledger and uuid of each tiered copy with an object or an unfinished upload."""
    keys = [key for key in (*evidence.objects[TIERED], *evidence.uploads) if (TIERED, key) not in evidence.planted]
    return {(int(match["id"]), match["uuid"]) for key in keys if (match := TIERED_KEY.fullmatch(key))}


def check_listed_ledgers(evidence: Evidence) -> Iterator[str]:
    """Promise 1: each listed ledger is completely in storage, by at least one copy."""
    for ledger_id, row in sorted(evidence.ledgers.items()):
        if row["place"] is None:
            continue
        copies = [kind for kind in ("LEDGER", "OFFLOADED_LEDGER") if _has_live_copy(evidence, ledger_id, kind)]
        if not copies:
            yield f"ledger {ledger_id} is listed and has no copy"
        if "LEDGER" in copies:
            yield from _check_primary_copy(evidence, ledger_id)
        if "OFFLOADED_LEDGER" in copies:
            uuid = evidence.copies[ledger_id, "OFFLOADED_LEDGER"]["context"]["uuid"]
            names = (f"{uuid}-ledger-{ledger_id}", f"{uuid}-ledger-{ledger_id}-index")
            yield from (f"ledger {ledger_id}: {name} is lost" for name in names if name not in evidence.objects[TIERED])
        next_entry = 0
        for segment in evidence.segments.get(ledger_id, ()):
            first_entry = segment["first_entry"]
            if first_entry != next_entry:
                yield f"ledger {ledger_id}: segment {segment['number']} begins at {first_entry}, not {next_entry}"
            next_entry = first_entry + segment["entries"]
        if next_entry != row["entries"]:
            yield f"ledger {ledger_id}: its row says {row['entries']} entries, its segments {next_entry}"


def _has_live_copy(evidence: Evidence, ledger_id: int, kind: str) -> bool:
    copy = evidence.copies.get((ledger_id, kind))
    return copy is not None and copy["state"] == "LIVE"


def _check_primary_copy(evidence: Evidence, ledger_id: int) -> Iterator[str]:
    sizes = evidence.objects[PRIMARY]
    if not any(name.endswith(".meta.json") for name in object_names_by_ledger(evidence).get(ledger_id, ())):
        yield f"ledger {ledger_id} is listed without its statement"
    for segment in evidence.segments.get(ledger_id, ()):
        number, expected_size = segment["number"], segment["size_bytes"]
        size = sizes.get(f"{ledger_prefix(ledger_id)}{number:08d}.parquet")
        if size != expected_size:
            yield f"ledger {ledger_id}: segment {number} of {expected_size} bytes is {size} in storage"


def check_component_ledgers(evidence: Evidence) -> Iterator[str]:
    """Promise 1: listed component ledgers are exactly those that rows name, and schemas hold what was set."""
    referenced = {
        row[column]: component
        for table, column, component in _COMPONENT_REFERENCES
        for row in evidence.rows(table)
        if row["topic_id"] not in topics_that_may_return(evidence)
    }
    referenced.pop(None, None)
    listed = {
        ledger_id: row["component"]
        for ledger_id, row in evidence.ledgers.items()
        if row["component"] != "MANAGED_LEDGER" and row["place"] is not None
    }
    for ledger_id in sorted(referenced.keys() | listed.keys()):
        if referenced.get(ledger_id) != listed.get(ledger_id):
            yield f"ledger {ledger_id}: needed as {referenced.get(ledger_id)}, listed as {listed.get(ledger_id)}"
    for row in evidence.rows("schema_version"):
        if (
            row["topic_id"] not in topics_that_may_return(evidence)
            and evidence.contents.get(row["ledger_id"]) != row["digest"]
        ):
            yield f"schema {row['version']} of topic {row['topic_id']} is not what was set"


def check_answered_appends(evidence: Evidence) -> Iterator[str]:
    """Promise 1: each answered entry is at its position, unless every consumer was done with it."""
    consumed = {
        position
        for name in PLAIN_TOPICS
        for op in evidence.acknowledgements(name, CONSUMING_SUBSCRIPTION)
        for position in op.positions
    }
    has_passed = {
        name: make_passed_predicate(op for op in evidence.ops if op.asked.get("topic") == name)
        for name in DELAYED_TOPICS
    }
    for op in evidence.operations_of_kind("append"):
        name = op.asked["topic"]
        entries = evidence.entries.get(evidence.topics.get(name, -1), {})
        for position, payload in op.stored:
            entry_found = entries.get(position)
            is_consumed = has_passed[name](position) if name in has_passed else position in consumed
            if entry_found is None and not (is_consumed and _may_be_deleted(evidence, name, position)):
                yield f"{name}: {position} was answered as stored, nobody may let it go, and it is gone"
            elif entry_found is not None and entry_found.payload != payload:
                yield f"{name}: {position} was answered for {payload!r} and holds {entry_found.payload!r}"


def _may_be_deleted(evidence: Evidence, name: str, position: EntryPosition) -> bool:
    row = evidence.ledgers.get(position[0])
    return name in PLAIN_TOPICS + DELAYED_TOPICS and (row is None or row["place"] is None)


_CONFIRMATION_GAP: Final = 1 << 16  # its number is one to two gaps above that of the confirmed segment


def _is_confirmation(name: str, numbers: Sequence[int]) -> bool:
    """Return whether an object may be a confirmation, which is deleted with its ledger."""
    number = name.removesuffix(".parquet")
    if not number.isdecimal():
        return False
    gaps = (int(number) - segment for segment in numbers)
    return any(_CONFIRMATION_GAP < gap <= 2 * _CONFIRMATION_GAP for gap in gaps)


def check_everything_referenced(evidence: Evidence) -> Iterator[str]:
    """Promise 2: everything stored is referenced or has an unfinished deletion."""
    unfinished = {(row["ledger_id"], row["copy"]) for row in evidence.intents if row["state"] != "DELETED"}
    for ledger_id, names in sorted(object_names_by_ledger(evidence).items()):
        if (ledger_id, "LEDGER") not in unfinished and (ledger_id, "LEDGER") not in evidence.copies:
            yield f"ledger {ledger_id} is forgotten: nothing names it, and {sorted(names)[:5]} are stored"
        elif (ledger_id, "LEDGER") in evidence.copies:
            numbers = [row["number"] for row in evidence.segments.get(ledger_id, ())]
            registered = {f"{number:08d}.parquet" for number in numbers}
            other_names = sorted(name for name in names - registered if not name.endswith(".meta.json"))
            unexpected = [name for name in other_names if not _is_confirmation(name, numbers)]
            if unexpected:
                yield f"ledger {ledger_id}: {unexpected[:5]} are stored, and no segment is of that number"
    live = {
        (row[0], copy["context"].get("uuid")) for row, copy in evidence.copies.items() if row[1] == "OFFLOADED_LEDGER"
    }
    intended = {
        (row["ledger_id"], row["context"].get("uuid"))
        for row in evidence.intents
        if row["copy"] == "OFFLOADED_LEDGER" and row["state"] != "DELETED"
    }
    for ledger_id, uuid in sorted(list_tiered_copies(evidence) - live - intended):
        yield f"tiered copy {uuid} of ledger {ledger_id} is forgotten"
    for ledger_id, row in sorted(evidence.ledgers.items()):
        if row["place"] is None:
            yield f"ledger {ledger_id} is {row['state']}, in no list, and nobody took it away"


def check_deletions_ended(evidence: Evidence) -> Iterator[str]:
    """Promise 2: every deletion has ended, and each dead letter has a reason."""
    for row in evidence.intents:
        if row["state"] == "PENDING":
            yield f"the deletion of ledger {row['ledger_id']} ({row['copy']}) has not ended: {row['last_error']}"
        if row["state"] == "DEAD_LETTERED" and not row["last_error"]:
            yield f"ledger {row['ledger_id']} is a dead letter without a reason"
        if row["state"] == "DELETED" and row["outcome"] not in _SUCCESS_OUTCOMES:
            yield f"the deletion of ledger {row['ledger_id']} ended as {row['outcome']} and is said to be done"
    yield from evidence.waits


def check_foreign_objects(evidence: Evidence) -> Iterator[str]:
    """Promise 3: foreign objects are unchanged, and Sexton writes only keys of its own form."""
    for (role, key), body in evidence.planted.items():
        if evidence.foreign_digests_at_end.get((role, key)) != body:
            yield f"{key} in the {role} bucket is not ours, and was touched"
    for key in evidence.objects[PRIMARY]:
        if (PRIMARY, key) not in evidence.planted and not PRIMARY_KEY.fullmatch(key):
            yield f"{key} was written to the primary bucket, and is no ledger's"
    for key in evidence.objects[TIERED]:
        if (TIERED, key) not in evidence.planted and not TIERED_KEY.fullmatch(key):
            yield f"{key} was written to the tiered bucket, and is no copy's"


def check_deleted_ledgers(evidence: Evidence) -> Iterator[str]:
    """Promise 5: deleted ledgers do not return, and no live record of a durably deleted ledger exists."""
    intents = [row for row in evidence.intents if row["copy"] == "LEDGER" and row["durable"]]
    deleted_how = {row["ledger_id"]: "by its intent" for row in intents}
    deleted_how |= {row["id"]: "by its tombstone" for row in evidence.rows("tombstone") if row["kind"] == "ledger"}
    for ledger_id, durable in sorted(ledgers_answered_as_ended(evidence).items()):
        if durable and evidence.recorded.get(("ledger", ledger_id)):
            yield f"ledger {ledger_id} was durably deleted, and its newest record lives"
        if ledger_id in evidence.ledgers:
            yield f"ledger {ledger_id} was answered as ended, and is in the catalog"
        if ledger_id in object_names_by_ledger(evidence) and not _is_dead_letter(evidence, ledger_id):
            yield f"ledger {ledger_id} was answered as ended, and is stored"
    ended = {ledger_id for ledger_id in deleted_how if not _has_tiered_copy(evidence, ledger_id)}
    for ledger_id in sorted(ended & evidence.ledgers.keys()):
        yield f"ledger {ledger_id} was deleted, {deleted_how[ledger_id]}, and is in the catalog"
    for ledger_id in sorted(deleted_how.keys() & object_names_by_ledger(evidence).keys()):
        if not _is_dead_letter(evidence, ledger_id):
            yield f"ledger {ledger_id} was deleted, {deleted_how[ledger_id]}, and is stored"
    for op in evidence.operations_of_kind("delete-topic"):
        if (
            op.end == "done"
            and not op.answer.get("refused")
            and op.asked["topic_id"] not in topics_that_may_return(evidence)
        ):
            yield from _check_topic_removed(evidence, op.asked["topic"], op.asked["topic_id"])


def _has_tiered_copy(evidence: Evidence, ledger_id: int) -> bool:
    return (ledger_id, "OFFLOADED_LEDGER") in evidence.copies


def _is_dead_letter(evidence: Evidence, ledger_id: int) -> bool:
    return any(row["ledger_id"] == ledger_id and row["state"] == "DEAD_LETTERED" for row in evidence.intents)


def _check_topic_removed(evidence: Evidence, name: str, topic_id: int) -> Iterator[str]:
    if topic_id in evidence.topics.values():
        yield f"{name} was deleted and is a topic"
    for table in ("ledger_list", "cursor", "schema_version", "delayed_index", "transaction_snapshot"):
        if any(row["topic_id"] == topic_id for row in evidence.rows(table)):
            yield f"{name} was deleted, and {table} has rows of it"


def check_record_log(evidence: Evidence) -> Iterator[str]:
    """Promise 5: after the last flush the record log has every ledger, topic and tombstone of the catalog."""
    for ledger_id in sorted(evidence.ledgers):
        if not evidence.recorded.get(("ledger", ledger_id)):
            yield f"ledger {ledger_id} is in the catalog, and the record log does not know it"
    for name, topic_id in evidence.topics.items():
        if not evidence.recorded.get(("topic", topic_id)):
            yield f"{name} is in the catalog, and the record log does not know it"
    for row in evidence.rows("tombstone"):
        if evidence.recorded.get((row["kind"], row["id"]), True):
            yield f"the tombstone of {row['kind']} {row['id']} is not in the record log"
    if evidence.rows("record_outbox"):
        yield f"{len(evidence.rows('record_outbox'))} changes were never flushed"
