"""Checks of the design's promises against evidence. Each violation is a sentence."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tests.soak.audit.copied import check_replica
from tests.soak.audit.delivered import check_deliveries, last_seek
from tests.soak.audit.ended import check_ended_ledgers
from tests.soak.audit.evidence import At, Evidence
from tests.soak.audit.stored import (
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
from tests.soak.audit.transacted import check_transactions
from tests.soak.scene import CONSUMED, DELAYED, HELD, LASTING, LISTS, SOUGHT, SOURCE

_MAX_SENTENCES_PER_CHECK = 20


Check = tuple[int, Callable[[Evidence], Iterator[str]]]
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


def _run_checks(evidence: Evidence, checks: Sequence[Check]) -> list[Violation]:
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
    last = {
        bundle: worker for _, bundle, _, worker in evidence.fences
    }  # the last sample was taken when owners were read
    for bundle, worker in evidence.owners.items():
        if last.get(bundle) != worker:
            yield f"bundle {bundle} is {worker}'s in ZooKeeper, and its fence is of {last.get(bundle)}"


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
        last: dict[str, int] = {}
        for _, entry in sorted(entries.items()):
            producer, _, number = entry.payload.partition(" ")
            if producer.startswith("producer-"):
                if int(number) <= last.get(producer, 0):
                    yield f"topic {topic_id}: {producer} {number} stands behind {last[producer]}"
                last[producer] = int(number)


def _check_reads(evidence: Evidence) -> Iterator[str]:
    """Promise 4: readers of the product see exactly what objects and decided transactions say."""
    for topic_id, found in evidence.seen.items():
        expected = evidence.visible(topic_id)
        if list(found) != expected:
            more, less = set(found) - set(expected), set(expected) - set(found)
            yield f"topic {topic_id}: readers see {sorted(more)[:3]} too many and {sorted(less)[:3]} too few"


def _check_acknowledgements(evidence: Evidence) -> Iterator[str]:
    """Promise 8: answered acknowledgements are kept, and nothing else counts as acknowledged."""
    subscribed = [(name, CONSUMED) for name in LASTING] + [(name, HELD) for name in (*LISTS, SOURCE)]
    for name, subscription in subscribed:
        if (evidence.topics.get(name, -1), subscription) not in evidence.acknowledged:
            yield f"{name} has lost its subscription {subscription}"
            continue
        yield from _check_subscription(evidence, name, subscription, 0.0, (-1, -1))
    for name in DELAYED:
        if last := last_seek(name, evidence.ops):
            to = (last.asked["to"][0], last.asked["to"][1])
            yield from _check_subscription(evidence, name, SOUGHT, last.asked_s, to)


def _check_subscription(evidence: Evidence, name: str, subscription: str, since_s: float, begins: At) -> Iterator[str]:
    """Check one subscription, which a seek at `since_s` set to `begins`: all earlier entries count as acknowledged.

    Acknowledgements of committed transactions count, too. `check_transactions` checks those themselves.
    """
    topic_id = evidence.topics[name]
    ops = list(evidence.acknowledgements(name, subscription, since_s))
    counting = [op for op in ops if "txn" not in op.asked or evidence.is_committed(op.asked["txn"])]
    asked = {at for op in counting for at in op.positions}
    for at in sorted({at for op in counting if op.end == "done" for at in op.positions}):
        if not evidence.is_acknowledged(topic_id, subscription, at):
            yield f"{name}: the acknowledgement of {at} by {subscription} was answered, and is lost"
    for at, _ in evidence.visible(topic_id):
        is_there = evidence.is_acknowledged(topic_id, subscription, at)
        if is_there and at >= begins and at not in asked:
            yield f"{name}: {at} counts as acknowledged by {subscription}, and nobody asked for that"
        if not is_there and at < begins:
            yield f"{name}: {subscription} was set to {begins}, and does not count {at} as acknowledged"


def _pending_messages(evidence: Evidence) -> list[tuple[int, At]]:
    """Return visible delayed messages that were not due at the end and that nobody has acknowledged."""
    pending = []
    for name in DELAYED:
        topic_id = evidence.topics.get(name, -1)
        entries = evidence.entries.get(topic_id, {})
        for at, _ in evidence.visible(topic_id):
            due_ms = entries[at].deliver_at_ms
            if (
                due_ms is not None
                and due_ms > evidence.ended_s * 1_000
                and not evidence.is_acknowledged(topic_id, CONSUMED, at)
            ):
                pending.append((topic_id, at))
    return pending


def _check_delayed_index(evidence: Evidence) -> Iterator[str]:
    """Promise 6: each pending message in the sealed part of a log is in exactly one bucket of its topic."""
    sealed = {row["topic_id"]: (row["sealed_ledger"], row["sealed_entry"]) for row in evidence.rows("delayed_index")}
    bucket_counts: Counter[tuple[int, At]] = Counter()
    for row in evidence.rows("delayed_bucket"):
        bucket_counts.update((row["topic_id"], at) for at in evidence.buckets.get(row["ledger_id"], ()))
    for topic_id, at in _pending_messages(evidence):
        count = bucket_counts[topic_id, at]
        if at <= sealed.get(topic_id, (-1, -1)) and count != 1:
            yield f"topic {topic_id}: {at} is pending and sealed, and stands in {count} buckets"


_CHECKS: tuple[Check, ...] = (
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
