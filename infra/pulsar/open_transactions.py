"""Open transactions of a cluster, as its coordinators and participants report them.

Source: Pulsar's `TransactionsBase`. A coordinator reports all of its transactions at once, but nothing if a participant
cannot be asked, for example because its topic is not loaded. Its transactions are then asked for one by one.
"""

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote

from infra.pulsar.broker_admin import (
    ADVICE_UNKNOWN_VERSION,
    AdminRequestFailed,
    BrokerAdmin,
    format_topic_path,
    require_field,
)
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import InvalidInput, shorten_text
from logstore.pulsar.znode_names import MANAGED_LEDGERS

NOTHING: Final = "nothing"
"""What a participant owes that has ended its part, or has no part yet."""

_TRANSACTIONS: Final = "/admin/v3/transactions"
_LOG_PREFIX: Final = f"{MANAGED_LEDGERS}/pulsar/system/persistent/__transaction_log_"
_ANY_TIMEOUT: Final = -1  # a coordinator reports the transactions with a longer timeout
_PARALLEL_REQUESTS: Final = 2  # a broker has 8 threads for requests, and some requests take one for 10 s
_MAX_IDS: Final = 2_000  # of one coordinator, asked for one by one
_MAX_UNREADABLE: Final = 5  # of one coordinator
_MAX_PARTICIPANTS: Final = 500  # that are asked for details
_INTERNAL_ERROR: Final = 500
_NO_READERS: Final = {"__compaction", "pulsar.dedup"}  # cursors that no subscription has
_ENDS_BY_STATE: Final = {"OPEN": "commit or abort", "COMMITTING": "commit", "ABORTING": "abort"}
_ID_PATTERN: Final = re.compile(r"\((\d{1,19}),(\d{1,19})\)", re.ASCII)
_POSITION_PATTERN: Final = re.compile(r"(-?\d{1,19}):(-?\d{1,19})(:-?\d+)?", re.ASCII)

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionParticipant:
    """Topic with messages of a transaction, or a subscription with acknowledgements of it."""

    topic: str
    subscription: str | None
    owes: str  # "commit", "abort", "commit or abort", or `NOTHING`
    position: str | None = None  # of the first message, or of the last message of a cumulative acknowledgement
    waiting: tuple[str, ...] = ()  # subscriptions that have read all messages before those of open transactions

    @property
    def has_details(self) -> bool:
        """Whether the participant itself knows more: who waits for messages, or if single acknowledgements are open."""
        return (self.position is None) is (self.subscription is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """Transaction that has not ended. Only the ids are known if `problem` is not empty."""

    coordinator: int
    sequence: int
    state: str | None = None
    opened_ms: int | None = None  # by the broker's clock
    timeout_ms: int | None = None
    participants: tuple[TransactionParticipant, ...] = ()
    problem: str = ""

    @property
    def id(self) -> str:
        return f"{self.coordinator}:{self.sequence}"


@dataclass(frozen=True, slots=True)
class TransactionReport:
    transactions: tuple[OpenTransaction, ...]  # those with a problem, then the others, oldest first
    problems: tuple[str, ...]  # what could not be read, as sentences


def read_open_transactions(admin: BrokerAdmin, reader: ZnodeReader) -> TransactionReport:
    """Ask all coordinators, and then the participants for what the coordinators do not report.

    Raises:
        AdminRequestFailed: The list of coordinators cannot be read.
        InvalidInput: The file of the token cannot be read.
    """
    path = f"{_TRANSACTIONS}/coordinators"
    coordinators = sorted(require_field(row, "id", int, path) for row in admin.read_json(path, list))
    logs = reader.read([f"{_LOG_PREFIX}{coordinator}" for coordinator in coordinators])
    has_log = [znode is not None for _, znode in logs]
    results = _run_in_threads(partial(_read_coordinator, admin), list(zip(coordinators, has_log, strict=True)))
    problems = [problem for _, problem in results if problem]
    transactions, participant_problems = _complete_participants(admin, [each for found, _ in results for each in found])
    problems += [f"transaction {each.id}: {each.problem}" for each in transactions if each.problem]
    transactions.sort(key=lambda each: (each.opened_ms or 0, each.coordinator, each.sequence))
    return TransactionReport(tuple(transactions), (*problems, *participant_problems))


def _read_coordinator(admin: BrokerAdmin, coordinator_and_log: tuple[int, bool]) -> tuple[list[OpenTransaction], str]:
    """Return the transactions of a coordinator, and a problem or ""."""
    coordinator, has_log = coordinator_and_log
    path = f"{_TRANSACTIONS}/slowTransactions/{_ANY_TIMEOUT}?coordinatorId={coordinator}"
    try:
        documents = admin.find_json(path, dict, attempts=1)
        if documents is not None:
            return [_parse_transaction(require_field(documents, name, dict, path), path) for name in documents], ""
    except AdminRequestFailed:
        try:
            return _read_one_by_one(admin, coordinator)
        except AdminRequestFailed as error:
            return [], f"coordinator {coordinator}: {error}"
    if not has_log:  # no client has used the coordinator yet
        return [], ""
    expected = f"coordinator {coordinator}: expected it to be loaded, because it has a log, found it not loaded."
    return [], f"{expected} A broker loads it when a client begins a transaction."


def _read_one_by_one(admin: BrokerAdmin, coordinator: int) -> tuple[list[OpenTransaction], str]:
    path = f"{_TRANSACTIONS}/coordinatorStats?coordinatorId={coordinator}"
    statistics = admin.read_json(path, dict)
    first, last = (require_field(statistics, name, int, path) for name in ("lowWaterMark", "leastSigBits"))
    count = require_field(statistics, "ongoingTxnSize", int, path)
    found: list[OpenTransaction] = []
    for sequence in range(first + 1, min(last, first + _MAX_IDS) + 1):
        if len(found) >= count or sum(bool(each.problem) for each in found) >= _MAX_UNREADABLE:
            break
        path = f"{_TRANSACTIONS}/transactionMetadata/{coordinator}/{sequence}"
        try:
            document = admin.find_json(path, dict, attempts=1)
        except AdminRequestFailed as error:
            if error.status is None or error.status < _INTERNAL_ERROR:
                return found, f"coordinator {coordinator}: {error}"
            problem = f"its participants cannot be asked, perhaps because a topic is not loaded or deleted: {error}"
            found.append(OpenTransaction(coordinator=coordinator, sequence=sequence, problem=problem))
        else:
            found += [_parse_transaction(document, path)] if document is not None else []
    missing = count - len(found)
    problem = f"coordinator {coordinator}: {missing:,} of {count:,} transactions were not read"
    return found, problem if missing > 0 else ""


def _parse_transaction(document: dict[str, Any], path: str) -> OpenTransaction:
    txn_id = require_field(document, "txnId", str, path)
    state = require_field(document, "status", str, path)
    match = _ID_PATTERN.fullmatch(txn_id)
    if not match or state not in _ENDS_BY_STATE:
        expected = f"a transaction such as (0,1) in a state of {', '.join(_ENDS_BY_STATE)}"
        raise AdminRequestFailed(
            path, expected=expected, found=f"{txn_id} in state {state}", advice=ADVICE_UNKNOWN_VERSION
        )
    participants: list[TransactionParticipant] = []
    produced = require_field(document, "producedPartitions", dict, path)
    for topic in produced:
        position = _find_text(require_field(produced, topic, dict, path), "startPosition", path)
        owes = _ENDS_BY_STATE[state] if position else NOTHING
        participants.append(TransactionParticipant(topic=topic, subscription=None, owes=owes, position=position))
    acknowledged = require_field(document, "ackedPartitions", dict, path)
    for topic in acknowledged:
        subscriptions = require_field(acknowledged, topic, dict, path)
        for subscription in subscriptions:
            position = _find_text(require_field(subscriptions, subscription, dict, path), "cumulativeAckPosition", path)
            participants.append(
                TransactionParticipant(
                    topic=topic, subscription=subscription, owes=_ENDS_BY_STATE[state], position=position
                )
            )
    return OpenTransaction(
        coordinator=int(match[1]),
        sequence=int(match[2]),
        state=state,
        opened_ms=require_field(document, "openTimestamp", int, path),
        timeout_ms=require_field(document, "timeoutAt", int, path),  # a duration, despite its name
        participants=tuple(sorted(participants, key=lambda each: (each.topic, each.subscription or ""))),
    )


def _complete_participants(
    admin: BrokerAdmin, transactions: list[OpenTransaction]
) -> tuple[list[OpenTransaction], list[str]]:
    """Add waiting subscriptions, and find out whether single acknowledgements are still pending."""
    unknown = {
        (each.topic, each.subscription): None
        for transaction in transactions
        for each in transaction.participants
        if each.has_details
    }
    asked = list(unknown)[:_MAX_PARTICIPANTS]
    answers = dict(zip(asked, _run_in_threads(partial(_ask_participant, admin), asked), strict=True))
    problems = [answer for answer in answers.values() if isinstance(answer, str)]
    if len(unknown) > len(asked):
        problems.append(f"{len(unknown) - len(asked):,} of {len(unknown):,} participants were not asked for details")

    def complete(participant: TransactionParticipant) -> TransactionParticipant:
        match answers.get((participant.topic, participant.subscription)):
            case tuple() as waiting:
                return replace(participant, waiting=waiting)
            case False:
                return replace(participant, owes=NOTHING)
        return participant

    completed = [replace(each, participants=tuple(map(complete, each.participants))) for each in transactions]
    return completed, problems


def _ask_participant(admin: BrokerAdmin, participant: tuple[str, str | None]) -> tuple[str, ...] | bool | str:
    """Return the waiting subscriptions of a topic, whether a subscription has open acknowledgements, or a problem."""
    topic, subscription = participant
    try:
        topic_path = format_topic_path(topic)
        if subscription is None:
            return _find_waiting_subscriptions(admin, topic_path)
        path = f"{_TRANSACTIONS}/pendingAckStats/{topic_path}/{quote(subscription, safe='')}"
        return require_field(admin.read_json(path, dict), "ongoingTxnSize", int, path) > 0
    except (AdminRequestFailed, InvalidInput) as error:
        return f"{topic}: {error}"


def _find_waiting_subscriptions(admin: BrokerAdmin, topic_path: str) -> tuple[str, ...]:
    """Return the subscriptions whose next message is behind the last one that may be read.

    The topic is loaded, because a coordinator has reported a position of it.
    """
    path = f"{_TRANSACTIONS}/transactionBufferStats/{topic_path}"
    readable = _parse_position(admin.read_json(path, dict), "maxReadPosition", path)
    path = f"/admin/v2/persistent/{topic_path}/internalStats"
    statistics = admin.read_json(path, dict)
    if _parse_position(statistics, "lastConfirmedEntry", path) <= readable:
        return ()
    cursors = require_field(statistics, "cursors", dict, path)
    return tuple(
        sorted(
            name
            for name in cursors
            if name not in _NO_READERS and _parse_position(cursors[name], "readPosition", path) > readable
        )
    )


def _parse_position(document: Any, name: str, path: str) -> tuple[int, int]:  # noqa: ANN401 - parsed JSON
    text = require_field(document, name, str, path)
    match = _POSITION_PATTERN.fullmatch(text)
    if not match:
        raise AdminRequestFailed(
            path, expected=f"{name} such as 7:4", found=shorten_text(repr(text)), advice=ADVICE_UNKNOWN_VERSION
        )
    return int(match[1]), int(match[2])


def _find_text(document: dict[str, Any], name: str, path: str) -> str | None:
    return None if document.get(name) is None else require_field(document, name, str, path)


def _run_in_threads(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return the results in order. Each thread sees the stop check of the caller."""
    with ThreadPoolExecutor(_PARALLEL_REQUESTS) as threads:
        tasks = [threads.submit(copy_context().run, function, item) for item in items]
        try:
            return [task.result() for task in tasks]
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
