"""Checks of the design's promises against evidence. Each violation is a sentence."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tests.soak.audit.delivery_checks import check_deliveries, find_last_seek
from tests.soak.audit.ended_ledger_checks import check_ended_ledgers
from tests.soak.audit.evidence import EntryPosition, Evidence
from tests.soak.audit.replica_checks import check_replica
from tests.soak.audit.storage_checks import (
    check_answered_appends,
    check_component_ledgers,
    check_deleted_ledgers,
    check_deletions_ended,
    check_everything_referenced,
    check_foreign_objects,
    check_listed_ledgers,
    check_record_log,
    list_tiered_copies,
    object_names_by_ledger,
)
from tests.soak.audit.transaction_checks import check_transactions
from tests.soak.soak_setup import (
    CONSUMING_SUBSCRIPTION,
    DELAYED_TOPICS,
    HOLDING_SUBSCRIPTION,
    LASTING_TOPICS,
    LIST_TOPICS,
    SOUGHT_SUBSCRIPTION,
    SOURCE_TOPIC,
)

_MAX_SENTENCES_PER_CHECK = 20


PromiseCheck = tuple[int, Callable[[Evidence], Iterator[str]]]
"""Number of a promise, and a function that yields a sentence for each violation of it."""


@dataclass(frozen=True, slots=True, order=True)
class Violation:
    """Broken promise, and a sentence that says how."""

    promise: int
    sentence: str


def find_violations(evidence: Evidence) -> list[Violation]:
    """Return all violations, also of the rebuilt catalog; at most 20 per check."""
    violations = _run_checks(evidence, _CHECKS)
    if evidence.rebuilt:
        checks = [(promise, check) for promise, check in _CHECKS if check in _CHECKS_AFTER_LOSS]
        violations += [
            Violation(violation.promise, f"rebuilt: {violation.sentence}")
            for violation in _run_checks(evidence.rebuilt, checks)
        ]
    return violations


def _run_checks(evidence: Evidence, checks: Sequence[PromiseCheck]) -> list[Violation]:
    violations = []
    for promise, check in checks:
        sentences = _run_check(check, evidence)
        violations += [Violation(promise, sentence) for sentence in sentences[:_MAX_SENTENCES_PER_CHECK]]
        if len(sentences) > _MAX_SENTENCES_PER_CHECK:
            violations.append(Violation(promise, f"and {len(sentences) - _MAX_SENTENCES_PER_CHECK} more of the kind"))
    return violations


def _run_check(check: Callable[[Evidence], Iterator[str]], evidence: Evidence) -> list[str]:
    """Return what the check finds. An error of the check is a finding and stops no other check."""
    sentences: list[str] = []
    try:
        sentences.extend(check(evidence))
    except Exception as error:  # noqa: BLE001 - reported as a violation
        sentences.append(f"the check {check.__name__.strip('_').removeprefix('check_')} failed with {error!r}")
    return sentences


def count_sets(evidence: Evidence) -> dict[str, int]:
    """Return sizes of the sets that the auditor computes."""
    return {
        "stored ledgers": len(object_names_by_ledger(evidence)),
        "stored tiered copies": len(list_tiered_copies(evidence)),
        "referenced ledgers": sum(row["place"] is not None for row in evidence.ledgers.values()),
        "intended deletions": len(evidence.intents),
        "deletions that ended": sum(row["state"] == "DELETED" for row in evidence.intents),
        "dead letters": sum(row["state"] == "DEAD_LETTERED" for row in evidence.intents),
        "tombstones": len(evidence.rows("tombstone")),
        "visible entries": sum(len(evidence.visible(topic_id)) for topic_id in evidence.entries),
        "pending delayed messages": len(_pending_messages(evidence)),
    }


def _check_fences(evidence: Evidence) -> Iterator[str]:
    """Promise 7: fences only rise, each has one worker, and the last one names the owner in ZooKeeper."""
    counters: dict[int, int] = {}
    workers: dict[tuple[int, int], str] = {}
    for _, bundle, counter, worker in evidence.fences:
        if counter < counters.get(bundle, 0):
            yield f"the fence of bundle {bundle} fell from {counters[bundle]} to {counter}"
        counters[bundle] = counter
        if workers.setdefault((bundle, counter), worker) != worker:
            yield f"fence {counter} of bundle {bundle} is of {workers[bundle, counter]} and of {worker}"
    last_worker_by_bundle = {
        bundle: worker for _, bundle, _, worker in evidence.fences
    }  # the last sample was taken when owners were read
    for bundle, worker in evidence.owners.items():
        if last_worker_by_bundle.get(bundle) != worker:
            yield f"bundle {bundle} is {worker}'s in ZooKeeper, and its fence is of {last_worker_by_bundle.get(bundle)}"


def _check_stored_once(evidence: Evidence) -> Iterator[str]:
    """Promise 8: each entry is stored once, refused ones not at all, and no process met an internal error."""
    refused = {
        (evidence.topics.get(op.asked["topic"]), payload)
        for op in evidence.operations_of_kind("append")
        if op.end == "failed"
        and op.answer["error"] in {"StoreUnavailable", "CatalogBusy"}
        and "producer" not in op.asked
        for payload in op.asked["payloads"]
    }
    for topic_id, entries in evidence.entries.items():
        counts = Counter(entry.payload for entry in entries.values() if entry.marker is None)
        for payload, count in sorted(counts.items()):
            if count > 1:
                yield f"topic {topic_id}: {payload!r} is there {count} times"
            if (topic_id, payload) in refused:
                yield f"topic {topic_id}: {payload!r} was refused as not stored, and is there"
    yield from _check_producer_order(evidence)
    for table, columns in (
        ("segment", ("ledger_id", "number")),
        ("pending_deletion", ("ledger_id", "copy", "generation")),
    ):
        keys = Counter(tuple(row[name] for name in columns) for row in evidence.rows(table))
        yield from (f"{table} has {key} {count} times" for key, count in keys.items() if count > 1)
    yield from (f"a client met {fault}" for fault in evidence.faults)
    yield from (f"{name} failed with {error}" for name, error in evidence.failed_workflows)
    yield from (f"{name} was asked to end and ended with {code}" for name, code in evidence.exits.items() if code)


def _check_producer_order(evidence: Evidence) -> Iterator[str]:
    """Check that entries of each producer are in the order of their sequence ids."""
    for topic_id, entries in evidence.entries.items():
        last_number_by_producer: dict[str, int] = {}
        for _, entry in sorted(entries.items()):
            producer, _, number = entry.payload.partition(" ")
            if producer.startswith("producer-"):
                if int(number) <= last_number_by_producer.get(producer, 0):
                    yield f"topic {topic_id}: {producer} {number} stands behind {last_number_by_producer[producer]}"
                last_number_by_producer[producer] = int(number)


def _check_reads(evidence: Evidence) -> Iterator[str]:
    """Promise 4: readers of the product see exactly what objects and decided transactions say."""
    for topic_id, read_entries in evidence.seen.items():
        expected = evidence.visible(topic_id)
        if list(read_entries) != expected:
            extra, missing = set(read_entries) - set(expected), set(expected) - set(read_entries)
            yield f"topic {topic_id}: readers see {sorted(extra)[:3]} too many and {sorted(missing)[:3]} too few"


def _check_acknowledgements(evidence: Evidence) -> Iterator[str]:
    """Promise 8: answered acknowledgements are kept, and nothing else counts as acknowledged."""
    subscribed = [(name, CONSUMING_SUBSCRIPTION) for name in LASTING_TOPICS] + [
        (name, HOLDING_SUBSCRIPTION) for name in (*LIST_TOPICS, SOURCE_TOPIC)
    ]
    for name, subscription in subscribed:
        if (evidence.topics.get(name, -1), subscription) not in evidence.acknowledged:
            yield f"{name} has lost its subscription {subscription}"
            continue
        yield from _check_subscription(evidence, name, subscription, 0.0, (-1, -1))
    for name in DELAYED_TOPICS:
        if seek := find_last_seek(name, evidence.ops):
            sought_position = (seek.asked["to"][0], seek.asked["to"][1])
            yield from _check_subscription(evidence, name, SOUGHT_SUBSCRIPTION, seek.requested_s, sought_position)


def _check_subscription(
    evidence: Evidence, name: str, subscription: str, since_s: float, start_position: EntryPosition
) -> Iterator[str]:
    """Check one subscription, which a seek at `since_s` set to `start_position`.

    All earlier entries count as acknowledged. Acknowledgements of committed transactions count, too;
    `check_transactions` checks these transactions themselves.
    """
    topic_id = evidence.topics[name]
    ops = list(evidence.acknowledgements(name, subscription, since_s))
    counting = [op for op in ops if "txn" not in op.asked or evidence.is_committed(op.asked["txn"])]
    requested_positions = {position for op in counting for position in op.positions}
    for position in sorted({position for op in counting if op.end == "done" for position in op.positions}):
        if not evidence.is_acknowledged(topic_id, subscription, position):
            yield f"{name}: the acknowledgement of {position} by {subscription} was answered, and is lost"
    for position, _ in evidence.visible(topic_id):
        is_there = evidence.is_acknowledged(topic_id, subscription, position)
        if is_there and position >= start_position and position not in requested_positions:
            yield f"{name}: {position} counts as acknowledged by {subscription}, and nobody asked for that"
        if not is_there and position < start_position:
            yield f"{name}: {subscription} was set to {start_position}, and does not count {position} as acknowledged"


def _pending_messages(evidence: Evidence) -> list[tuple[int, EntryPosition]]:
    """Return visible delayed messages that were not due at the end and that nobody has acknowledged."""
    pending = []
    for name in DELAYED_TOPICS:
        topic_id = evidence.topics.get(name, -1)
        entries = evidence.entries.get(topic_id, {})
        for position, _ in evidence.visible(topic_id):
            due_ms = entries[position].deliver_at_ms
            if (
                due_ms is not None
                and due_ms > evidence.ended_s * 1_000
                and not evidence.is_acknowledged(topic_id, CONSUMING_SUBSCRIPTION, position)
            ):
                pending.append((topic_id, position))
    return pending


def _check_delayed_index(evidence: Evidence) -> Iterator[str]:
    """Promise 6: each pending message in the sealed part of a log is in exactly one bucket of its topic."""
    sealed = {row["topic_id"]: (row["sealed_ledger"], row["sealed_entry"]) for row in evidence.rows("delayed_index")}
    bucket_counts: Counter[tuple[int, EntryPosition]] = Counter()
    for row in evidence.rows("delayed_bucket"):
        bucket_counts.update((row["topic_id"], position) for position in evidence.buckets.get(row["ledger_id"], ()))
    for topic_id, position in _pending_messages(evidence):
        count = bucket_counts[topic_id, position]
        if position <= sealed.get(topic_id, (-1, -1)) and count != 1:
            yield f"topic {topic_id}: {position} is pending and sealed, and stands in {count} buckets"


_CHECKS: tuple[PromiseCheck, ...] = (
    (1, check_listed_ledgers),
    (1, check_component_ledgers),
    (1, check_answered_appends),
    (1, check_ended_ledgers),
    (2, check_everything_referenced),
    (2, check_deletions_ended),
    (3, check_foreign_objects),
    (4, check_transactions),
    (4, _check_reads),
    (5, check_deleted_ledgers),
    (5, check_record_log),
    (5, check_replica),
    (6, check_deliveries),
    (6, _check_delayed_index),
    (7, _check_fences),
    (8, _check_stored_once),
    (8, _check_acknowledgements),
)

_CHECKS_AFTER_LOSS: Final = {
    check_listed_ledgers,
    check_component_ledgers,
    check_answered_appends,
    check_ended_ledgers,
    check_everything_referenced,
    check_transactions,
    _check_reads,
    check_deleted_ledgers,
    _check_delayed_index,
    _check_acknowledgements,
}
"""Checks that hold as well for a catalog that was rebuilt from record log and storage."""
