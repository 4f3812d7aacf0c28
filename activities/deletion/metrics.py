"""Prometheus counters of deletion. Source: PIP-186, "Metrics".

The caller counts the changes of a transaction after its commit. A repeated activity changes and counts nothing.
Counters miss changes if the worker dies after the commit, or if a successful commit was reported as failed. Exact
numbers are in SQL.

No label names a topic or a ledger. A component that this build does not know has the label `UNKNOWN`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from temporalio import activity

from logstore.deletion.intents import DeletionIntent, Outcome
from logstore.log.ledgers import Component
from logstore.ports.catalog.deletion import FiledIntentCount, IntentResult, IntentTally

_Labels = tuple[tuple[str, str], ...]

_DESCRIPTIONS = {
    "sexton_deletion_ledgers_sent_total": "Intents filed by phase one",
    "sexton_deletion_received_total": "Rows taken up by phase two, once for each attempt",
    "sexton_deletion_ledgers_deleted_total": "Rows of whose copy nothing is left in storage",
    "sexton_deletion_ledger_delete_failures_total": "Attempts that failed and will be repeated",
    "sexton_deletion_acknowledged_total": "Rows that ended, by outcome",
    "sexton_deletion_reached_max_retries_total": (
        "Rows that became dead letters because every attempt failed; refusals are not counted. The gauge"
        " sexton_deletion_dead_lettered shows all dead letters that there are now"
    ),
    "sexton_deletion_deleted_objects_total": "Objects that storage confirmed as deleted",
    "sexton_deletion_deleted_bytes_total": "Bytes of the objects that storage confirmed as deleted",
    "sexton_deletion_batches_total": "Batches that were closed with a certificate",
}


def count_filed_intents(filed_counts: Iterable[FiledIntentCount]) -> None:
    rows = Counter({_labels(count.component, count.copy): count.rows for count in filed_counts})
    _add_to_counter("sexton_deletion_ledgers_sent_total", rows)


def count_taken_intents(intents: Iterable[DeletionIntent]) -> None:
    _add_to_counter("sexton_deletion_received_total", Counter(map(_labels_of_intent, intents)))


def count_failed_attempts(intents: Iterable[DeletionIntent]) -> None:
    _add_to_counter("sexton_deletion_ledger_delete_failures_total", Counter(map(_labels_of_intent, intents)))


def count_ended_intents(
    intents: Iterable[DeletionIntent], results: Sequence[IntentResult], changed_rows: frozenset[int]
) -> None:
    labels_by_row = {intent.row_id: _labels_of_intent(intent) for intent in intents}
    counted = [(labels_by_row[result.row_id], result) for result in results if result.row_id in changed_rows]
    outcomes = Counter((*labels, ("outcome", result.outcome.value)) for labels, result in counted)
    _add_to_counter("sexton_deletion_acknowledged_total", outcomes)
    deleted = Counter(labels for labels, result in counted if result.outcome.is_success)
    _add_to_counter("sexton_deletion_ledgers_deleted_total", deleted)
    exhausted = Counter(labels for labels, result in counted if result.outcome is Outcome.DEAD_LETTERED)
    _add_to_counter("sexton_deletion_reached_max_retries_total", exhausted)
    objects, size_bytes = Counter[_Labels](), Counter[_Labels]()
    for labels, result in counted:
        objects[labels] += result.objects
        size_bytes[labels] += result.size_bytes
    _add_to_counter("sexton_deletion_deleted_objects_total", objects)
    _add_to_counter("sexton_deletion_deleted_bytes_total", size_bytes)


def count_closed_batch(tally: IntentTally) -> None:
    """Count the batch if `tally.closed` is set. The outcome is COMPLETE if no copy is left, otherwise PARTIAL."""
    if tally.closed:
        is_complete = all(Outcome(name).is_success for name in tally.outcomes)
        _add_to_counter("sexton_deletion_batches_total", {(("outcome", "COMPLETE" if is_complete else "PARTIAL"),): 1})


def _labels_of_intent(intent: DeletionIntent) -> _Labels:
    return _labels(intent.component, intent.copy.value)


def _labels(component: str, copy: str) -> _Labels:
    return ("component", component if component in set(Component) else "UNKNOWN"), ("copy", copy)


def _add_to_counter(name: str, amounts: Mapping[_Labels, int]) -> None:
    if not any(amounts.values()):
        return
    counter = activity.metric_meter().create_counter(name, _DESCRIPTIONS[name])
    for labels, amount in amounts.items():
        counter.add(amount, dict(labels))
