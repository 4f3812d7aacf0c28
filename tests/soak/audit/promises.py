"""The promises of the design, judged by evidence alone: sentences say where one was broken."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tests.soak.audit.copied import wrong_copied
from tests.soak.audit.delivered import last_seek, wrong_delivered
from tests.soak.audit.ended import wrong_ended
from tests.soak.audit.evidence import At, Evidence
from tests.soak.audit.stored import (
    forgotten,
    lost_answered,
    not_whole,
    returned,
    stored,
    stored_tiered,
    touched,
    unfinished,
    unrecorded,
    wrong_needed,
)
from tests.soak.audit.transacted import wrong_transacted
from tests.soak.scene import CONSUMED, DELAYED, HELD, LASTING, LISTS, SOUGHT, SOURCE

_MOST_OF_A_KIND = 20


Check = tuple[int, Callable[[Evidence], Iterator[str]]]
"""A promise, and what looks whether it was kept."""


@dataclass(frozen=True, slots=True, order=True)
class Violation:
    """A promise, and how it was broken."""

    promise: int
    sentence: str


def violations(seen: Evidence) -> list[Violation]:
    """All of them, also of the catalog that was rebuilt; of one check at most some."""
    found = _judged(seen, _CHECKS)
    if seen.rebuilt:
        lost = [one for one in _CHECKS if one[1] in _AFTER_LOSS]
        found += [Violation(one.promise, f"rebuilt: {one.sentence}") for one in _judged(seen.rebuilt, lost)]
    return found


def _judged(seen: Evidence, checks: Sequence[Check]) -> list[Violation]:
    found = []
    for promise, check in checks:
        sentences = _sentences(check, seen)
        found += [Violation(promise, one) for one in sentences[:_MOST_OF_A_KIND]]
        if len(sentences) > _MOST_OF_A_KIND:
            found.append(Violation(promise, f"and {len(sentences) - _MOST_OF_A_KIND} more of the kind"))
    return found


def _sentences(check: Callable[[Evidence], Iterator[str]], seen: Evidence) -> list[str]:
    """Return what the check finds; evidence that it cannot read is a finding, and keeps no other check from looking."""
    found: list[str] = []
    try:
        found.extend(check(seen))
    except Exception as error:  # noqa: BLE001 - told as what it is
        found.append(f"the check {check.__name__.strip('_')} failed with {error!r}")
    return found


def sets(seen: Evidence) -> dict[str, int]:
    """How many there are of what was recomputed."""
    return {
        "stored ledgers": len(stored(seen)),
        "stored tiered copies": len(stored_tiered(seen)),
        "referenced ledgers": sum(row["place"] is not None for row in seen.ledgers.values()),
        "intended deletions": len(seen.intents),
        "deletions that ended": sum(row["state"] == "DELETED" for row in seen.intents),
        "dead letters": sum(row["state"] == "DEAD_LETTERED" for row in seen.intents),
        "tombstones": len(seen.rows("tombstone")),
        "visible entries": sum(len(seen.visible(topic_id)) for topic_id in seen.entries),
        "pending delayed messages": len(_pending(seen)),
    }


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
        (seen.topics.get(op.asked["topic"]), payload)
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
            if (topic_id, payload) in refused:
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
    subscribed = [(name, CONSUMED) for name in LASTING] + [(name, HELD) for name in (*LISTS, SOURCE)]
    for name, subscription in subscribed:
        if (seen.topics.get(name, -1), subscription) not in seen.acknowledged:
            yield f"{name} has lost its subscription {subscription}"
            continue
        yield from _misacknowledged_by(seen, name, subscription, 0.0, (-1, -1))
    for name in DELAYED:
        if last := last_seek(name, seen.ops):
            to = (last.asked["to"][0], last.asked["to"][1])
            yield from _misacknowledged_by(seen, name, SOUGHT, last.asked_s, to)


def _misacknowledged_by(seen: Evidence, name: str, subscription: str, since_s: float, begins: At) -> Iterator[str]:
    """By one subscription that was set to an entry then: all before it counts as acknowledged.

    What a transaction acknowledges counts if it was committed; `transacted` looks whether it does.
    """
    topic_id = seen.topics[name]
    ops = list(seen.acknowledgements(name, subscription, since_s))
    counting = [op for op in ops if "txn" not in op.asked or seen.is_committed(op.asked["txn"])]
    asked = {at for op in counting for at in op.positions}
    for at in sorted({at for op in counting if op.end == "done" for at in op.positions}):
        if not seen.is_acknowledged(topic_id, subscription, at):
            yield f"{name}: the acknowledgement of {at} by {subscription} was answered, and is lost"
    for at, _ in seen.visible(topic_id):
        is_there = seen.is_acknowledged(topic_id, subscription, at)
        if is_there and at >= begins and at not in asked:
            yield f"{name}: {at} counts as acknowledged by {subscription}, and nobody asked for that"
        if not is_there and at < begins:
            yield f"{name}: {subscription} was set to {begins}, and does not count {at} as acknowledged"


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


_CHECKS: tuple[Check, ...] = (
    (1, not_whole),
    (1, wrong_needed),
    (1, lost_answered),
    (1, wrong_ended),
    (2, forgotten),
    (2, unfinished),
    (3, touched),
    (4, wrong_transacted),
    (4, _misread),
    (5, returned),
    (5, unrecorded),
    (5, wrong_copied),
    (6, wrong_delivered),
    (6, _untracked),
    (7, _owned),
    (8, _twice),
    (8, _misacknowledged),
)

_AFTER_LOSS: Final = {
    not_whole, wrong_needed, lost_answered, wrong_ended, forgotten, wrong_transacted, _misread, returned, _untracked,
    _misacknowledged,
}  # fmt: skip
"""What must be true of a catalog that comes back from record log and storage as well."""
