"""The promises of the design, judged by evidence alone: sentences say where one was broken."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.soak.audit.delivered import wrong_delivered
from tests.soak.audit.evidence import PRIMARY, PRIMARY_KEY, TIERED, TIERED_KEY, At, Evidence, prefix
from tests.soak.audit.transacted import wrong_transacted
from tests.soak.scene import CONSUMED, DELAYED, LISTS, PLAIN, SOURCE

_MOST_OF_A_KIND = 20
_GONE = {"DELETED", "ALREADY_GONE"}


@dataclass(frozen=True, slots=True, order=True)
class Violation:
    """A promise, and how it was broken."""

    promise: int
    sentence: str


def violations(seen: Evidence) -> list[Violation]:
    """All of them; of one check at most some."""
    found = []
    for promise, check in _CHECKS:
        sentences = list(check(seen))
        found += [Violation(promise, one) for one in sentences[:_MOST_OF_A_KIND]]
        if len(sentences) > _MOST_OF_A_KIND:
            found.append(Violation(promise, f"and {len(sentences) - _MOST_OF_A_KIND} more of the kind"))
    return found


def sets(seen: Evidence) -> dict[str, int]:
    """How many there are of what was recomputed."""
    return {
        "stored ledgers": len(_stored(seen)),
        "stored tiered copies": len(_stored_tiered(seen)),
        "referenced ledgers": sum(row["place"] is not None for row in seen.ledgers.values()),
        "intended deletions": len(seen.intents),
        "deletions that ended": sum(row["state"] == "DELETED" for row in seen.intents),
        "dead letters": sum(row["state"] == "DEAD_LETTERED" for row in seen.intents),
        "tombstones": len(seen.rows("tombstone")),
        "visible entries": sum(len(seen.visible(topic_id)) for topic_id in seen.entries),
        "pending delayed messages": len(_pending(seen)),
    }


def _stored(seen: Evidence) -> dict[int, set[str]]:
    """Names of objects below each ledger's prefix."""
    found: dict[int, set[str]] = {}
    for key in seen.objects[PRIMARY]:
        at = PRIMARY_KEY.fullmatch(key)
        if at and (PRIMARY, key) not in seen.planted:
            found.setdefault(int(at["id"], 16), set()).add(at["name"])
    return found


def _stored_tiered(seen: Evidence) -> set[tuple[int, str]]:
    """Ledger and uuid of each tiered copy of which there is an object or a part."""
    keys = [key for key in (*seen.objects[TIERED], *seen.uploads) if (TIERED, key) not in seen.planted]
    return {(int(at["id"]), at["uuid"]) for key in keys if (at := TIERED_KEY.fullmatch(key))}


def _whole(seen: Evidence) -> Iterator[str]:
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
    stored = seen.objects[PRIMARY]
    if not any(name.endswith(".meta.json") for name in _stored(seen).get(ledger_id, ())):
        yield f"ledger {ledger_id} is listed without its statement"
    for segment in seen.segments.get(ledger_id, ()):
        number, told = segment["number"], segment["size_bytes"]
        size = stored.get(f"{prefix(ledger_id)}{number:08d}.parquet")
        if size != told:
            yield f"ledger {ledger_id}: segment {number} of {told} bytes is {size} in storage"


def _needed(seen: Evidence) -> Iterator[str]:
    """1: what a cursor, a schema, a bucket or a snapshot of a transaction buffer names is listed, and holds that."""
    named = {row["snapshot_ledger"]: "MANAGED_CURSOR" for row in seen.rows("cursor")}
    named |= {row["ledger_id"]: "SCHEMA_STORAGE" for row in seen.rows("schema_version")}
    named |= {row["ledger_id"]: "DELAYED_INDEX" for row in seen.rows("delayed_bucket")}
    named |= {row["ledger_id"]: "TXN_SNAPSHOT" for row in seen.rows("transaction_snapshot")}
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
        if seen.contents.get(row["ledger_id"]) != row["digest"]:
            yield f"schema {row['version']} of topic {row['topic_id']} is not what was set"


def _answered(seen: Evidence) -> Iterator[str]:
    """1: an entry whose append was answered stands where it was answered, unless every consumer was done with it."""
    asked: dict[str, set[At]] = {}
    for op in seen.of_kind("acknowledge"):
        asked.setdefault(op.asked["topic"], set()).update((at[0], at[1]) for at in op.asked["positions"])
    lasting = {*PLAIN, *LISTS, SOURCE, *DELAYED}
    for op in seen.of_kind("append"):
        name = op.asked["topic"]
        if name not in lasting:
            continue
        entries = seen.entries.get(seen.topics.get(name, -1), {})
        for at, payload in op.stored:
            found = entries.get(at)
            if found is None and not (_may_go(seen, name, at) and at in asked.get(name, ())):
                yield f"{name}: {at} was answered as stored, nobody may let it go, and it is gone"
            elif found is not None and found.payload != payload:
                yield f"{name}: {at} was answered for {payload!r} and holds {found.payload!r}"


def _may_go(seen: Evidence, name: str, at: At) -> bool:
    row = seen.ledgers.get(at[0])
    return name in PLAIN + DELAYED and (row is None or row["place"] is None)


def _forgotten(seen: Evidence) -> Iterator[str]:
    """2: everything stored is referenced or intended, all that was intended has ended, and what ended is gone."""
    unfinished = {(row["ledger_id"], row["copy"]) for row in seen.intents if row["state"] != "DELETED"}
    for ledger_id, names in sorted(_stored(seen).items()):
        if (ledger_id, "LEDGER") not in unfinished and (ledger_id, "LEDGER") not in seen.copies:
            yield f"ledger {ledger_id} is forgotten: nothing names it, and {sorted(names)[:5]} are stored"
        elif (ledger_id, "LEDGER") in seen.copies:
            registered = {f"{row['number']:08d}.parquet" for row in seen.segments.get(ledger_id, ())}
            astray = sorted(name for name in names - registered if not name.endswith(".meta.json"))
            if astray:
                yield f"ledger {ledger_id}: {astray[:5]} are stored, and no segment is of that number"
    live = {(row[0], copy["context"].get("uuid")) for row, copy in seen.copies.items() if row[1] == "OFFLOADED_LEDGER"}
    intended = {
        (row["ledger_id"], row["context"].get("uuid"))
        for row in seen.intents
        if row["copy"] == "OFFLOADED_LEDGER" and row["state"] != "DELETED"
    }
    for ledger_id, uuid in sorted(_stored_tiered(seen) - live - intended):
        yield f"tiered copy {uuid} of ledger {ledger_id} is forgotten"
    for ledger_id, row in sorted(seen.ledgers.items()):
        if row["place"] is None:
            yield f"ledger {ledger_id} is {row['state']}, in no list, and nobody took it away"


def _unfinished(seen: Evidence) -> Iterator[str]:
    """2: every deletion has ended; a dead letter says why."""
    for row in seen.intents:
        if row["state"] == "PENDING":
            yield f"the deletion of ledger {row['ledger_id']} ({row['copy']}) has not ended: {row['last_error']}"
        if row["state"] == "DEAD_LETTERED" and not row["last_error"]:
            yield f"ledger {row['ledger_id']} is a dead letter without a reason"
        if row["state"] == "DELETED" and row["outcome"] not in _GONE:
            yield f"the deletion of ledger {row['ledger_id']} ended as {row['outcome']} and is said to be done"
    yield from seen.waits


def _touched(seen: Evidence) -> Iterator[str]:
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


def _returned(seen: Evidence) -> Iterator[str]:
    """5: what was deleted is deleted, and durably deleted ledgers count for nothing in the record log either."""
    gone = {row["ledger_id"]: "by its intent" for row in seen.intents if row["copy"] == "LEDGER" and row["durable"]}
    gone |= {row["id"]: "by its tombstone" for row in seen.rows("tombstone") if row["kind"] == "ledger"}
    for op in seen.of_kind("delete-ledgers"):
        if op.end == "done" and not op.answer.get("refused"):
            gone |= dict.fromkeys(op.asked["ledgers"], "as was answered")
            durable = op.asked["ledgers"] if op.asked["durable"] else ()
            for ledger_id in durable:
                if seen.recorded.get(("ledger", ledger_id)):
                    yield f"ledger {ledger_id} was durably deleted, and its newest record lives"
    for ledger_id in sorted(gone.keys() & {one for one in seen.ledgers if not _only_a_copy_went(seen, one)}):
        yield f"ledger {ledger_id} was deleted, {gone[ledger_id]}, and is in the catalog"
    for ledger_id in sorted(gone.keys() & _stored(seen).keys()):
        if not _dead_letter(seen, ledger_id):
            yield f"ledger {ledger_id} was deleted, {gone[ledger_id]}, and is stored"
    for op in seen.of_kind("delete-topic"):
        if op.end == "done" and not op.answer.get("refused"):
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


def _unrecorded(seen: Evidence) -> Iterator[str]:
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


def _owned(seen: Evidence) -> Iterator[str]:
    """7: fences only rise, one worker a fence; and the owner that ZooKeeper names is the one of the last fence."""
    counters: dict[int, int] = {}
    workers: dict[tuple[int, int], str] = {}
    for _, bundle, counter, worker in seen.fences:
        if counter < counters.get(bundle, 0):
            yield f"the fence of bundle {bundle} fell from {counters[bundle]} to {counter}"
        counters[bundle] = counter
        if workers.setdefault((bundle, counter), worker) != worker:
            yield f"fence {counter} of bundle {bundle} is of {workers[bundle, counter]} and of {worker}"
    last = {bundle: worker for _, bundle, _, worker in seen.fences}  # the last sample is of when owners were read
    for bundle, worker in seen.owners.items():
        if last.get(bundle) != worker:
            yield f"bundle {bundle} is {worker}'s in ZooKeeper, and its fence is of {last.get(bundle)}"


def _twice(seen: Evidence) -> Iterator[str]:
    """8: everything once; what was refused not at all; and no process met what no program should."""
    refused = {
        payload
        for op in seen.of_kind("append")
        if op.end == "failed"
        and op.answer["error"] in {"StoreUnavailable", "CatalogBusy"}
        and "producer" not in op.asked
        for payload in op.asked["payloads"]
    }
    for topic_id, entries in seen.entries.items():
        counts = Counter(entry.payload for entry in entries.values() if entry.marker is None)
        for payload, count in sorted(counts.items()):
            if count > 1:
                yield f"topic {topic_id}: {payload!r} is there {count} times"
            if payload in refused:
                yield f"topic {topic_id}: {payload!r} was refused as not stored, and is there"
    yield from _disordered(seen)
    for table, columns in (
        ("segment", ("ledger_id", "number")),
        ("pending_deletion", ("ledger_id", "copy", "generation")),
    ):
        keys = Counter(tuple(row[name] for name in columns) for row in seen.rows(table))
        yield from (f"{table} has {key} {count} times" for key, count in keys.items() if count > 1)
    yield from (f"a client met {one}" for one in seen.faults)
    yield from (f"{name} failed with {error}" for name, error in seen.failed_workflows)
    yield from (f"{name} was asked to end and ended with {code}" for name, code in seen.exits.items() if code)


def _disordered(seen: Evidence) -> Iterator[str]:
    """Entries of a producer with sequence ids come in their order."""
    for topic_id, entries in seen.entries.items():
        last: dict[str, int] = {}
        for _, entry in sorted(entries.items()):
            producer, _, number = entry.payload.partition(" ")
            if producer.startswith("producer-"):
                if int(number) <= last.get(producer, 0):
                    yield f"topic {topic_id}: {producer} {number} stands behind {last[producer]}"
                last[producer] = int(number)


def _misread(seen: Evidence) -> Iterator[str]:
    """4: a reader of the product sees exactly what objects and decided transactions say."""
    for topic_id, found in seen.seen.items():
        wanted = seen.visible(topic_id)
        if list(found) != wanted:
            more, less = set(found) - set(wanted), set(wanted) - set(found)
            yield f"topic {topic_id}: readers see {sorted(more)[:3]} too many and {sorted(less)[:3]} too few"


def _misacknowledged(seen: Evidence) -> Iterator[str]:
    """8: acknowledgements that were answered are kept, and nothing counts as acknowledged that nobody acknowledged."""
    for name in PLAIN + DELAYED:
        topic_id = seen.topics.get(name, -1)
        if (topic_id, CONSUMED) not in seen.acknowledged:
            yield f"{name} has lost its subscription"
            continue
        ops = [op for op in seen.of_kind("acknowledge") if op.asked["topic"] == name]
        asked = {(at[0], at[1]) for op in ops for at in op.asked["positions"]}
        done = {(at[0], at[1]) for op in ops if op.end == "done" for at in op.asked["positions"]}
        for at in sorted(done):
            if not seen.is_acknowledged(topic_id, CONSUMED, at):
                yield f"{name}: the acknowledgement of {at} was answered, and is lost"
        for at, _ in seen.visible(topic_id):
            if at not in asked and seen.is_acknowledged(topic_id, CONSUMED, at):
                yield f"{name}: {at} counts as acknowledged, and nobody asked for that"


def _pending(seen: Evidence) -> list[tuple[int, At]]:
    """Visible delayed messages that were not due at the end, and that nobody has acknowledged."""
    found = []
    for name in DELAYED:
        topic_id = seen.topics.get(name, -1)
        entries = seen.entries.get(topic_id, {})
        for at, _ in seen.visible(topic_id):
            due_ms = entries[at].deliver_at_ms
            if (
                due_ms is not None
                and due_ms > seen.ended_s * 1_000
                and not seen.is_acknowledged(topic_id, CONSUMED, at)
            ):
                found.append((topic_id, at))
    return found


def _untracked(seen: Evidence) -> Iterator[str]:
    """6: what is pending and lies in the sealed part of the log is in one bucket of its topic."""
    sealed = {row["topic_id"]: (row["sealed_ledger"], row["sealed_entry"]) for row in seen.rows("delayed_index")}
    held: Counter[tuple[int, At]] = Counter()
    for row in seen.rows("delayed_bucket"):
        held.update((row["topic_id"], at) for at in seen.buckets.get(row["ledger_id"], ()))
    for topic_id, at in _pending(seen):
        count = held[topic_id, at]
        if at <= sealed.get(topic_id, (-1, -1)) and count != 1:
            yield f"topic {topic_id}: {at} is pending and sealed, and stands in {count} buckets"


_CHECKS: tuple[tuple[int, Callable[[Evidence], Iterator[str]]], ...] = (
    (1, _whole),
    (1, _needed),
    (1, _answered),
    (2, _forgotten),
    (2, _unfinished),
    (3, _touched),
    (4, wrong_transacted),
    (4, _misread),
    (5, _returned),
    (5, _unrecorded),
    (6, wrong_delivered),
    (6, _untracked),
    (7, _owned),
    (8, _twice),
    (8, _misacknowledged),
)
