"""Bounds of the input of jobs: beyond them a job could only hang, or do what was not meant.

Bounds of policies hold for every run. The rest holds for what comes from outside: a run that a job of ours started or
continued may be of another build, and has been checked where it came from.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, Final

from logstore.errors import InvalidInput
from logstore.log.ledgers import CopyKind
from logstore.names import TopicName, check_name, check_reason
from logstore.ownership import check_worker_id
from logstore.reconciliation.jobs import MIN_SCRUB_RATE
from logstore.reconciliation.spark_master import FORMS, is_master
from logstore.records.tombstones import DeletePolicy
from logstore.transactions.transactions import MAX_COORDINATORS, TransactionId
from workflows.delayed.values import BuildDelayedIndexInput, SealBucketsInput
from workflows.deletion.values import (
    MAX_OBJECTS_PER_S,
    DeleteLedgerInput,
    DeleteLedgersInput,
    DeletionPolicy,
    ExplicitDetach,
    TrimTopicsInput,
)
from workflows.offload.values import OffloadAsk, OffloadPolicy
from workflows.reconciliation.values import ReconcileOrphansInput, ScrubLedgersInput, ScrubLedgersProgress
from workflows.records.values import (
    DefragmentRecordsInput,
    EndRecordsInput,
    FlushRecordsInput,
    RaidTombstonesInput,
    ReplicateRecordsInput,
    SweepRecordsInput,
)
from workflows.transactions.values import (
    BroadcastTransactionInput,
    BuildTransactionSnapshotsInput,
    CoordinatorInput,
    SweepTransactionsInput,
)

MAX_LEDGER_IDS: Final = 10_000
"""Ledgers in one explicit delete, inclusive: their ids travel in one payload of at most 200 KB."""

MAX_OFFLOAD_LEDGERS: Final = 4_000
"""Ledgers in one ask, inclusive: it waits in a payload with others, of which the workflow takes 100 KB together."""

MAX_SCRUB_TOPICS: Final = 1_000
"""Topics in one scrub, inclusive, unless it is of every topic: statements of the catalog name them."""

_MONTH_S = 30 * 86_400
_MOST_AGE_S = 100 * 366 * 86_400
_MOST_INT = 2**63 - 1  # what the catalog's columns hold
_MOST_INVENTORIES = 16
_MOST_SUBSCRIPTIONS = 100  # passed over by one operation
_MOST_PATH = 1_000  # characters
_RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")  # names a folder, and workflows and batches
_FUNCTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_MOST_BATCH_ID = 200  # with the workflow's name in front, within the 255 of an id in Temporal


@dataclass(frozen=True, slots=True)
class FieldRule:
    """What a field of the input may hold."""

    phrase: str  # as a refusal says it after "expected"
    refuses: Callable[[Any], str | None]  # the phrase of this value, or None where it is as it should be


def _rule(phrase: str, allows: Callable[[Any], bool]) -> FieldRule:
    return FieldRule(phrase, lambda found: None if allows(found) else phrase)


def _within(least: int, most: float, *, optional: bool = False) -> FieldRule:
    bounds = f"{least:,} or more" if most in {math.inf, _MOST_INT} else f"{least:,} to {most:,}"
    return _rule(bounds, lambda found: (optional and found is None) or least <= found <= most)


def _as(check: Callable[[str], object]) -> FieldRule:
    """The rule of a function that refuses by `InvalidInput`; a line break is refused by each of them."""

    def refuses(found: str) -> str | None:
        try:
            check(found)
        except InvalidInput as error:
            return error.expected
        return None

    return FieldRule(refuses("\n") or "", refuses)


def _or_empty(rule: FieldRule) -> FieldRule:
    return FieldRule(f"{rule.phrase}; or nothing", lambda found: rule.refuses(found) if found else None)


def _ids(most: int) -> FieldRule:
    def allows(found: list[int] | None) -> bool:
        return found is None or (0 < len(found) <= most and all(0 <= one <= _MOST_INT for one in found))

    return _rule(f"1 to {most:,} ids, each 0 or more", allows)


def _file(path: str) -> bool:
    return 0 < len(path) <= _MOST_PATH and path.isprintable() and "://" not in path


_BATCH_ID: Final = _rule(
    f"1 to {_MOST_BATCH_ID} printable characters",
    lambda found: 0 < len(found) <= _MOST_BATCH_ID and found.isprintable(),
)
_RUN: Final = _rule(
    "1 to 64 of a-z, 0-9 and -, as `orphans plan` names it", lambda found: _RUN_ID.fullmatch(found) is not None
)
_INVENTORIES: Final = _rule(
    f"at most {_MOST_INVENTORIES} paths of manifests, files that the workers can read; no URL is one",
    lambda found: len(found) <= _MOST_INVENTORIES and all(map(_file, found)),
)
_MASTER: Final = _rule(f"{FORMS}; or nothing", lambda found: not found or is_master(found))
_COPY: Final = _rule(f"one of {', '.join(CopyKind)}", lambda found: found in set(CopyKind))
_COPIES: Final = _rule(
    f"out of {', '.join(CopyKind)}, each once",
    lambda found: len(found) == len(set(found)) and set(found) <= set(CopyKind),
)
_SUBSCRIPTIONS: Final = _rule(
    f"at most {_MOST_SUBSCRIPTIONS} names of subscriptions",
    lambda found: len(found) <= _MOST_SUBSCRIPTIONS and not any(map(_as(partial(check_name, "name")).refuses, found)),
)
_FUNCTION: Final = _rule(
    "the name of a function, 1 to 64 of A-Z, a-z, 0-9 and _", lambda found: _FUNCTION_NAME.fullmatch(found) is not None
)
_POLICY: Final = _rule(f"one of {', '.join(DeletePolicy)}", lambda found: found is None or found in set(DeletePolicy))


_ALONE: Final[Mapping[str, FieldRule]] = {
    "max_attempts": _within(1, 1_000_000),
    "retry_interval_s": _within(0, _MONTH_S),
    "owner_patience_s": _within(1, _MONTH_S),
}
_BOUNDS: Final[Mapping[type, Mapping[str, FieldRule]]] = {
    DeleteLedgerInput: _ALONE,
    DeletionPolicy: {
        **_ALONE,
        "parallelism": _within(1, 256),
        "chunk": _within(1, 1_000_000),  # cut to what fits an answer anyway
        "alone": _within(1, 1_500),
    },
    OffloadPolicy: {
        "timeout_s": _within(1, _MONTH_S),
        "attempts": _within(1, 1_000_000),
        "parallelism": _within(1, 64),
    },
}
_ANYWHERE: Final[Mapping[str, FieldRule]] = {
    "topic": _as(TopicName.from_encoded),
    "topic_id": _within(0, _MOST_INT),
    "ledger_id": _within(0, _MOST_INT),
    "generation": _within(0, _MOST_INT),
    "catalog_epoch": _within(0, _MOST_INT, optional=True),
    "after": _within(-1, _MOST_INT),
    "removed_after": _within(-1, _MOST_INT),
    "copy": _COPY,
    "durable_delete": _POLICY,
    "actor": _or_empty(_as(partial(check_name, "actor"))),
    "reason": _as(check_reason),
    "batch_id": _BATCH_ID,
    "owner": _or_empty(_as(check_worker_id)),
    "patience_s": _within(0, _MONTH_S),
    "page": _within(1, 1_000),
    "max_buckets": _within(1, _MOST_INT, optional=True),
    "rate": _within(0, MAX_OBJECTS_PER_S),
    "run_id": _RUN,
    "function": _FUNCTION,
    "now_us": _within(0, _MOST_INT),
    "bytes_per_s": _within(MIN_SCRUB_RATE, 1 << 40),
    "older_than_s": _within(0, _MOST_AGE_S),
    "max_orphan_share": _within(0, 1),
    "max_absent_share": _within(0, 1),
    "txn": _as(TransactionId.parse),
    "tc_id": _within(0, MAX_COORDINATORS - 1),
    "linger_s": _within(0, 60),
    "watch_s": _within(0, 3_600),
    "eligible_age_s": _within(0, _MOST_AGE_S, optional=True),
    "pause_s": _within(0, _MONTH_S),
    "most_pause_s": _within(0, _MONTH_S),
    "inventories": _INVENTORIES,
    "master": _MASTER,
}
_OUTSIDE: Final[Mapping[type, Mapping[str, FieldRule]]] = {
    DeleteLedgersInput: {"topic": _or_empty(_ANYWHERE["topic"])},  # "": a batch of several
    DeleteLedgerInput: {"topic": _or_empty(_ANYWHERE["topic"])},  # "": a row whose topic was damaged by hand
    SealBucketsInput: {"topic_id": _within(0, _MOST_INT, optional=True), "topic": _or_empty(_ANYWHERE["topic"])},
    TrimTopicsInput: {"batch_id": _or_empty(_ANYWHERE["batch_id"])},
    ReconcileOrphansInput: {"run_id": _or_empty(_RUN)},
    ScrubLedgersInput: {"topic_ids": _or_empty(_ids(MAX_SCRUB_TOPICS))},
    ScrubLedgersProgress: {"run_id": _or_empty(_RUN)},
    BuildTransactionSnapshotsInput: {"run_id": _or_empty(_RUN), "topic_ids": _or_empty(_ids(MAX_LEDGER_IDS))},
    BuildDelayedIndexInput: {"run_id": _or_empty(_RUN), "topic_ids": _or_empty(_ids(MAX_LEDGER_IDS))},
    ExplicitDetach: {
        "ledger_ids": _ids(MAX_LEDGER_IDS),
        "remove": _COPIES,
        "pass_over": _SUBSCRIPTIONS,
        "generation": _within(0, _MOST_INT, optional=True),
    },
    EndRecordsInput: {
        "topic": _or_empty(_ANYWHERE["topic"]),
        "after": _rule("a topic and a ledger", lambda _: True),  # whose ids have bounds of their own
    },
    OffloadAsk: {"ledger_ids": _ids(MAX_OFFLOAD_LEDGERS)},
}


def check_request(request: object, *, queue: str, outside: bool = True) -> None:
    """Refuse input of a job of which a field is beyond its bounds.

    Args:
        request: Its input, or what a signal or an update brings.
        queue: The task queue of the job, on whose workers its uploads run.
        outside: Whether it comes from outside, and not from a job of ours.

    Raises:
        InvalidInput: Names the field, the bounds and what was found.
    """
    for path, value, name, found in _fields(request, ""):
        rules = find_rules(type(value), name, queue=queue, outside=outside)
        expected = next((phrase for rule in rules if (phrase := rule.refuses(found))), None)
        if expected:
            raise InvalidInput(path, expected=expected, found=found)


def find_rules(kind: type, name: str, *, queue: str, outside: bool = True) -> list[FieldRule]:
    """What holds of the field of that name of a value of that type; see `check`."""
    rules = [_BOUNDS.get(kind, {}).get(name)]
    if outside:
        rules.append(_OUTSIDE.get(kind, {}).get(name, _ANYWHERE.get(name)))
        served = _SERVED.get(kind) if name == "queue" else None
        rules.append(_queue(served(queue)) if served else None)
    return [rule for rule in rules if rule]


def uploads_queue(task_queue: str) -> str:
    """The queue beside a task queue where its uploads run, on the same workers."""
    return f"{task_queue}-uploads"


def transactions_queue(task_queue: str) -> str:
    """The queue beside a task queue where coordinators and broadcasts work: they linger, and hold a thread each."""
    return f"{task_queue}-transactions"


def records_queue(task_queue: str) -> str:
    """The queue beside a task queue where jobs on the record log work: a flush holds its thread while it waits."""
    return f"{task_queue}-records"


def bulk_queue(task_queue: str) -> str:
    """The queue beside a task queue where its bulk jobs run, one at a time on each worker."""
    return f"{task_queue}-bulk"


_SERVED: Final[Mapping[type, Callable[[str], str]]] = {
    OffloadPolicy: uploads_queue,
    ReconcileOrphansInput: bulk_queue,
    ScrubLedgersInput: bulk_queue,
    BuildTransactionSnapshotsInput: bulk_queue,
    BuildDelayedIndexInput: bulk_queue,
    CoordinatorInput: transactions_queue,
    BroadcastTransactionInput: transactions_queue,
    SweepTransactionsInput: transactions_queue,
    FlushRecordsInput: records_queue,
    SweepRecordsInput: records_queue,
    DefragmentRecordsInput: records_queue,
    RaidTombstonesInput: records_queue,
    ReplicateRecordsInput: records_queue,
}


def _queue(served: str) -> FieldRule:
    return _rule(f"{served}, or nothing: workers serve no other for these", lambda found: found in {"", served})


def _fields(value: object, above: str) -> Iterator[tuple[str, object, str, Any]]:
    """Every field of a value and of the values in it: its path, whose it is, its name, and what it holds."""
    if not is_dataclass(value):
        return
    for field in fields(value):
        found, path = getattr(value, field.name), f"{above}{field.name}"
        yield path, value, field.name, found
        yield from _fields(found, f"{path}.")
        for number, item in enumerate(found if isinstance(found, list) else ()):
            yield from _fields(item, f"{path}.{number}.")
