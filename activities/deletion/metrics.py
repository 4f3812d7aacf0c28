"""What deletion counts for Prometheus, after the list of PIP-186.

Every counter is raised after the catalog has committed what it counts, and only by what that very call changed: a
repeated activity adds nothing, and a counter never runs ahead of the catalog. A worker that dies between the two, or
a commit that landed and was reported as failed, leaves it behind by what that call changed, for ever: rows in SQL are
the truth, counters are for rates and alarms. What an attempt deleted before it died is met as ALREADY_GONE by the
next: such rows count as deleted, and their objects and bytes as nothing.

Labels are few on purpose: no topic, no ledger. A component that no build knows is `UNKNOWN`.

Source: PIP-186, "Metrics".
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from temporalio import activity

from logstore.deletion.intents import DeletionIntent, Outcome
from logstore.log.ledgers import Component
from logstore.ports.catalog import FiledCount, IntentResult, Tally

_Labels = tuple[tuple[str, str], ...]

_ABOUT = {
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


def sent(filed: Iterable[FiledCount]) -> None:
    """Count intents that phase one filed."""
    rows = Counter({_labels(one.component, one.copy): one.rows for one in filed})
    _add("sexton_deletion_ledgers_sent_total", rows)


def received(intents: Iterable[DeletionIntent]) -> None:
    """Count rows that phase two has taken up, once the catalog has committed it."""
    _add("sexton_deletion_received_total", Counter(_labels(one.component, one.copy.value) for one in intents))


def failed(intents: Iterable[DeletionIntent]) -> None:
    """Count attempts that failed, one for each intent, once the catalog has their errors."""
    _add(
        "sexton_deletion_ledger_delete_failures_total",
        Counter(_labels(one.component, one.copy.value) for one in intents),
    )


def ended(intents: Iterable[DeletionIntent], results: Sequence[IntentResult], changed: frozenset[int]) -> None:
    """Count rows that ended: those of the results whose rows the catalog changed."""
    labels = {one.row_id: _labels(one.component, one.copy.value) for one in intents}
    mine = [(labels[one.row_id], one) for one in results if one.row_id in changed]
    _add("sexton_deletion_acknowledged_total", Counter((*of, ("outcome", one.outcome.value)) for of, one in mine))
    _add("sexton_deletion_ledgers_deleted_total", Counter(of for of, one in mine if one.outcome.is_success))
    exhausted = Counter(of for of, one in mine if one.outcome is Outcome.DEAD_LETTERED)
    _add("sexton_deletion_reached_max_retries_total", exhausted)
    objects, size_bytes = Counter[_Labels](), Counter[_Labels]()
    for of, one in mine:
        objects[of] += one.objects
        size_bytes[of] += one.size_bytes
    _add("sexton_deletion_deleted_objects_total", objects)
    _add("sexton_deletion_deleted_bytes_total", size_bytes)


def certified(tally: Tally) -> None:
    """Count a batch, if this call closed it: as COMPLETE where nothing is left of any of its copies."""
    if tally.closed:
        whole = all(Outcome(name).is_success for name in tally.outcomes)
        _add("sexton_deletion_batches_total", {(("outcome", "COMPLETE" if whole else "PARTIAL"),): 1})


def _labels(component: str, copy: str) -> _Labels:
    return ("component", component if component in set(Component) else "UNKNOWN"), ("copy", copy)


def _add(name: str, amounts: Mapping[_Labels, int]) -> None:
    if not any(amounts.values()):
        return
    counter = activity.metric_meter().create_counter(name, _ABOUT[name])
    for labels, amount in amounts.items():
        counter.add(amount, dict(labels))
