"""Bounds of the input of jobs. Input beyond the bounds could make a job hang, or do something unintended.

Bounds of policies apply to every run. Other bounds apply only to input that does not come from another job. Input from
another job was checked before, perhaps by another build.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, Final

from logstore.errors import InvalidInput
from logstore.log.ledgers import CopyKind
from logstore.ownership import check_worker_id
from logstore.pulsar.plan_jobs import MAX_BETWEEN_SCANS_S
from logstore.reconciliation.bulk_job_inputs_and_results import MIN_SCRUB_RATE
from logstore.reconciliation.spark_master_url import MASTER_FORMS, is_spark_master_url
from logstore.records.tombstone_rules import DeleteDurability
from logstore.transactions.transaction_ids_and_states import MAX_COORDINATORS, TransactionId
from logstore.validated_names import TopicName, check_audit_reason, check_producer_or_actor_name
from workflows.delayed.job_definitions import BuildDelayedIndexInput, SealBucketsInput
from workflows.deletion.job_definitions import (
    MAX_OBJECTS_PER_S,
    DeleteLedgerInput,
    DeleteLedgersInput,
    DeletionPolicy,
    ExplicitDetach,
    TrimTopicsInput,
)
from workflows.offload.job_definitions import OffloadAsk, OffloadLimits
from workflows.pulsar.job_definitions import AbortTransactionsInput, ApplyPulsarInput, PlanPulsarInput, UndoPulsarInput
from workflows.reconciliation.job_definitions import ReconcileOrphansInput, ScrubLedgersInput, ScrubLedgersProgress
from workflows.records.job_definitions import (
    DefragmentRecordsInput,
    EndRecordsInput,
    FlushRecordsInput,
    RaidTombstonesInput,
    ReplicateRecordsInput,
    SweepRecordsInput,
)
from workflows.transactions.job_definitions import (
    BroadcastTransactionInput,
    BuildTransactionSnapshotsInput,
    CoordinatorInput,
    SweepTransactionsInput,
)

MAX_LEDGER_IDS: Final = 10_000
"""Maximum number of ledgers in one explicit delete. Their ids take up to 200 KB of one workflow payload."""

MAX_OFFLOAD_LEDGERS: Final = 4_000
"""Maximum number of ledgers in one request to offload. Waiting requests share 100 KB of one workflow payload."""

MAX_SCRUB_TOPICS: Final = 1_000
"""Maximum number of given topics in one scrub. SQL statements contain the ids of these topics."""

MAX_ABORTED_TRANSACTIONS: Final = 100
"""Maximum number of transactions in one abort. The run's row has all of their participants."""

_DAY_S = 86_400
_MONTH_S = 30 * _DAY_S
_MAX_AGE_S = 100 * 366 * 86_400
_MAX_INT = 2**63 - 1  # of a column of the catalog
_MAX_INVENTORIES = 16
_MAX_PASSED_SUBSCRIPTIONS = 100  # by one operation
_MAX_PATH_CHARACTERS = 1_000
_RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")  # part of the names of folders, workflows and batches
_FUNCTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_MAX_BATCH_ID_CHARACTERS = 200  # a workflow id, which also has the workflow's name, may have 255


@dataclass(frozen=True, slots=True)
class FieldRule:
    phrase: str  # text after "expected" in a refusal
    refuses: Callable[[Any], str | None]  # phrase for a wrong value; None: the value is allowed


def _build_rule(phrase: str, allows: Callable[[Any], bool]) -> FieldRule:
    return FieldRule(phrase, lambda value: None if allows(value) else phrase)


def _number_range_rule(low: int, high: float, *, optional: bool = False) -> FieldRule:
    bounds = f"{low:,} or more" if high in {math.inf, _MAX_INT} else f"{low:,} to {high:,}"
    return _build_rule(bounds, lambda value: (optional and value is None) or low <= value <= high)


def _rule_from_check(check: Callable[[str], object]) -> FieldRule:
    """Return a rule that calls `check`. The rule's phrase comes from the error of `check` for a line break."""

    def refuses(value: str) -> str | None:
        try:
            check(value)
        except InvalidInput as error:
            return error.expected
        return None

    return FieldRule(refuses("\n") or "", refuses)


def _allow_empty(rule: FieldRule) -> FieldRule:
    return FieldRule(f"{rule.phrase}; or nothing", lambda value: rule.refuses(value) if value else None)


def _id_list_rule(max_ids: int) -> FieldRule:
    def allows(ids: list[int] | None) -> bool:
        return ids is None or (0 < len(ids) <= max_ids and all(0 <= number <= _MAX_INT for number in ids))

    return _build_rule(f"1 to {max_ids:,} ids, each 0 or more", allows)


def _is_file_path(path: str) -> bool:
    return 0 < len(path) <= _MAX_PATH_CHARACTERS and path.isprintable() and "://" not in path


_BATCH_ID: Final = _build_rule(
    f"1 to {_MAX_BATCH_ID_CHARACTERS} printable characters",
    lambda value: 0 < len(value) <= _MAX_BATCH_ID_CHARACTERS and value.isprintable(),
)
_RUN: Final = _build_rule(
    "1 to 64 of a-z, 0-9 and -, as `orphans plan` names it", lambda value: _RUN_ID.fullmatch(value) is not None
)
_INVENTORIES: Final = _build_rule(
    f"at most {_MAX_INVENTORIES} paths of manifests, files that the workers can read; no URL is one",
    lambda value: len(value) <= _MAX_INVENTORIES and all(map(_is_file_path, value)),
)
_MASTER: Final = _build_rule(f"{MASTER_FORMS}; or nothing", lambda value: not value or is_spark_master_url(value))
_COPY: Final = _build_rule(f"one of {', '.join(CopyKind)}", lambda value: value in set(CopyKind))
_COPIES: Final = _build_rule(
    f"out of {', '.join(CopyKind)}, each once",
    lambda value: len(value) == len(set(value)) and set(value) <= set(CopyKind),
)
_SUBSCRIPTIONS: Final = _build_rule(
    f"at most {_MAX_PASSED_SUBSCRIPTIONS} names of subscriptions",
    lambda value: (
        len(value) <= _MAX_PASSED_SUBSCRIPTIONS
        and not any(map(_rule_from_check(partial(check_producer_or_actor_name, "name")).refuses, value))
    ),
)
_TRANSACTIONS: Final = _build_rule(
    f"1 to {MAX_ABORTED_TRANSACTIONS} transactions such as 3:17, each once",
    lambda value: (
        0 < len(value) == len(set(value)) <= MAX_ABORTED_TRANSACTIONS
        and not any(map(_rule_from_check(TransactionId.parse).refuses, value))
    ),
)
_FUNCTION: Final = _build_rule(
    "the name of a function, 1 to 64 of A-Z, a-z, 0-9 and _", lambda value: _FUNCTION_NAME.fullmatch(value) is not None
)
_POLICY: Final = _build_rule(
    f"one of {', '.join(DeleteDurability)}", lambda value: value is None or value in set(DeleteDurability)
)


_RETRY_RULES: Final[Mapping[str, FieldRule]] = {
    "max_attempts": _number_range_rule(1, 1_000_000),
    "retry_interval_s": _number_range_rule(0, _MONTH_S),
    "owner_patience_s": _number_range_rule(1, _MONTH_S),
}
_RULES_BY_TYPE: Final[Mapping[type, Mapping[str, FieldRule]]] = {
    DeleteLedgerInput: _RETRY_RULES,
    DeletionPolicy: {
        **_RETRY_RULES,
        "parallelism": _number_range_rule(1, 256),
        "chunk": _number_range_rule(1, 1_000_000),  # the size of a result limits it further
        "alone": _number_range_rule(1, 1_500),
    },
    OffloadLimits: {
        "timeout_s": _number_range_rule(1, _MONTH_S),
        "attempts": _number_range_rule(1, 1_000_000),
        "parallelism": _number_range_rule(1, 64),
    },
}
_OUTSIDE_RULES: Final[Mapping[str, FieldRule]] = {
    "topic": _rule_from_check(TopicName.from_encoded),
    "topic_id": _number_range_rule(0, _MAX_INT),
    "ledger_id": _number_range_rule(0, _MAX_INT),
    "generation": _number_range_rule(0, _MAX_INT),
    "catalog_epoch": _number_range_rule(0, _MAX_INT, optional=True),
    "after": _number_range_rule(-1, _MAX_INT),
    "removed_after": _number_range_rule(-1, _MAX_INT),
    "copy": _COPY,
    "durable_delete": _POLICY,
    "actor": _allow_empty(_rule_from_check(partial(check_producer_or_actor_name, "actor"))),
    "reason": _rule_from_check(check_audit_reason),
    "batch_id": _BATCH_ID,
    "owner": _allow_empty(_rule_from_check(check_worker_id)),
    "patience_s": _number_range_rule(0, _MONTH_S),
    "page": _number_range_rule(1, 1_000),
    "max_buckets": _number_range_rule(1, _MAX_INT, optional=True),
    "rate": _number_range_rule(0, MAX_OBJECTS_PER_S),
    "run_id": _RUN,
    "function": _FUNCTION,
    "now_us": _number_range_rule(0, _MAX_INT),
    "bytes_per_s": _number_range_rule(MIN_SCRUB_RATE, 1 << 40),
    "older_than_s": _number_range_rule(0, _MAX_AGE_S),
    "max_orphan_share": _number_range_rule(0, 1),
    "max_absent_share": _number_range_rule(0, 1),
    "txn": _rule_from_check(TransactionId.parse),
    "tc_id": _number_range_rule(0, MAX_COORDINATORS - 1),
    "linger_s": _number_range_rule(0, 60),
    "watch_s": _number_range_rule(0, 3_600),
    "eligible_age_s": _number_range_rule(0, _MAX_AGE_S, optional=True),
    "pause_s": _number_range_rule(0, _MONTH_S),
    "most_pause_s": _number_range_rule(0, _MONTH_S),
    "inventories": _INVENTORIES,
    "master": _MASTER,
}
_OUTSIDE_RULES_BY_TYPE: Final[Mapping[type, Mapping[str, FieldRule]]] = {
    DeleteLedgersInput: {"topic": _allow_empty(_OUTSIDE_RULES["topic"])},  # "": a batch of several topics
    DeleteLedgerInput: {"topic": _allow_empty(_OUTSIDE_RULES["topic"])},  # "": a row whose topic is damaged
    SealBucketsInput: {
        "topic_id": _number_range_rule(0, _MAX_INT, optional=True),
        "topic": _allow_empty(_OUTSIDE_RULES["topic"]),
    },
    TrimTopicsInput: {"batch_id": _allow_empty(_OUTSIDE_RULES["batch_id"])},
    ReconcileOrphansInput: {"run_id": _allow_empty(_RUN)},
    PlanPulsarInput: {
        "run_id": _allow_empty(_RUN),
        "older_than_s": _number_range_rule(0, _MAX_AGE_S, optional=True),
        "between_s": _number_range_rule(0, MAX_BETWEEN_SCANS_S),
    },
    ApplyPulsarInput: {"limit": _number_range_rule(0, _MAX_INT)},
    AbortTransactionsInput: {"transactions": _TRANSACTIONS},
    UndoPulsarInput: {"ledger_ids": _allow_empty(_id_list_rule(MAX_LEDGER_IDS))},
    ScrubLedgersInput: {"topic_ids": _allow_empty(_id_list_rule(MAX_SCRUB_TOPICS))},
    ScrubLedgersProgress: {"run_id": _allow_empty(_RUN)},
    BuildTransactionSnapshotsInput: {
        "run_id": _allow_empty(_RUN),
        "topic_ids": _allow_empty(_id_list_rule(MAX_LEDGER_IDS)),
    },
    BuildDelayedIndexInput: {"run_id": _allow_empty(_RUN), "topic_ids": _allow_empty(_id_list_rule(MAX_LEDGER_IDS))},
    ExplicitDetach: {
        "ledger_ids": _id_list_rule(MAX_LEDGER_IDS),
        "remove": _COPIES,
        "pass_over": _SUBSCRIPTIONS,
        "generation": _number_range_rule(0, _MAX_INT, optional=True),
    },
    EndRecordsInput: {
        "topic": _allow_empty(_OUTSIDE_RULES["topic"]),
        "after": _build_rule("a topic and a ledger", lambda _: True),  # their ids have rules of their own
    },
    OffloadAsk: {"ledger_ids": _id_list_rule(MAX_OFFLOAD_LEDGERS)},
}


def check_input_bounds(request: object, *, queue: str, from_outside: bool = True) -> None:
    """Raise `InvalidInput` if a field of a request is out of its bounds.

    `queue` is the task queue of the job. `from_outside` means that the request does not come from another job.
    """
    for path, parent, name, value in _list_fields(request, ""):
        rules = find_field_rules(type(parent), name, queue=queue, from_outside=from_outside)
        expected = next((phrase for rule in rules if (phrase := rule.refuses(value))), None)
        if expected:
            raise InvalidInput(path, expected=expected, found=value)


def find_field_rules(input_type: type, name: str, *, queue: str, from_outside: bool = True) -> list[FieldRule]:
    rules = [_RULES_BY_TYPE.get(input_type, {}).get(name)]
    if from_outside:
        rules.append(_OUTSIDE_RULES_BY_TYPE.get(input_type, {}).get(name, _OUTSIDE_RULES.get(name)))
        derive_queue = _QUEUE_BY_TYPE.get(input_type) if name == "queue" else None
        rules.append(_served_queue_rule(derive_queue(queue)) if derive_queue else None)
    return [rule for rule in rules if rule]


def uploads_queue(task_queue: str) -> str:
    """Return the queue for uploads that belongs to `task_queue`. The workers of `task_queue` also serve this queue."""
    return f"{task_queue}-uploads"


def transactions_queue(task_queue: str) -> str:
    """Return the queue for coordinators and broadcasts. A coordinator occupies a thread while it waits for work."""
    return f"{task_queue}-transactions"


def records_queue(task_queue: str) -> str:
    """Return the queue for record log jobs. A repeated flush occupies a thread while it waits for changes."""
    return f"{task_queue}-records"


def bulk_queue(task_queue: str) -> str:
    """Return the queue for bulk jobs. Each worker runs one bulk job at a time."""
    return f"{task_queue}-bulk"


_QUEUE_BY_TYPE: Final[Mapping[type, Callable[[str], str]]] = {
    OffloadLimits: uploads_queue,
    ReconcileOrphansInput: bulk_queue,
    PlanPulsarInput: bulk_queue,
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


def _served_queue_rule(queue: str) -> FieldRule:
    return _build_rule(f"{queue}, or nothing: workers serve no other for these", lambda value: value in {"", queue})


def _list_fields(parent: object, prefix: str) -> Iterator[tuple[str, object, str, Any]]:
    if not is_dataclass(parent):
        return
    for field in fields(parent):
        value, path = getattr(parent, field.name), f"{prefix}{field.name}"
        yield path, parent, field.name, value
        yield from _list_fields(value, f"{path}.")
        for number, item in enumerate(value if isinstance(value, list) else ()):
            yield from _list_fields(item, f"{path}.{number}.")
