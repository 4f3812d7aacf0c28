"""Open transactions of a cluster, as its coordinators and participants report them.

A coordinator reports nothing at all if one participant of its transactions cannot be asked, for example because no
broker has loaded its topic. Then the coordinator's log is read.

Source: Pulsar's `TransactionsBase`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

from infra.pulsar.bookie_reads import BookieDirectory
from infra.pulsar.broker_admin import (
    ADVICE_UNKNOWN_VERSION,
    AdminRequestFailed,
    BrokerAdmin,
    format_topic_path,
    require_field,
)
from infra.pulsar.coordinator_loading import load_coordinator
from infra.pulsar.transaction_log_reads import read_logged_transactions
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import InvalidInput, PreconditionFailed, StoreUnavailable, UnknownObject, shorten_text
from logstore.pulsar.cluster_transactions import (
    ENDS_BY_STATE,
    NOTHING,
    OpenTransaction,
    TransactionParticipant,
    TransactionReport,
    parse_position,
)
from logstore.pulsar.transaction_log import LoggedTransaction
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.transactions.transaction_ids_and_states import TransactionId

_TRANSACTIONS: Final = "/admin/v3/transactions"
_ANY_TIMEOUT: Final = -1  # a coordinator reports the transactions with a longer timeout
_PARALLEL_REQUESTS: Final = 4  # few, because a coordinator's broker asks all participants for one request
_MAX_PARTICIPANTS: Final = 500  # of one coordinator that are asked for positions, and of all that are asked for details
_NO_READERS: Final = {"__compaction", "pulsar.dedup"}  # cursors that no subscription has
_ID_PATTERN: Final = re.compile(r"\((\d{1,19}),(\d{1,19})\)", re.ASCII)
_POSITION_PATTERN: Final = re.compile(r"(-?\d{1,19}):(-?\d{1,19})(:-?\d+)?", re.ASCII)

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _AskedValue(Generic[T]):
    """Value that a broker reports. Without a value and a problem, the asked object is not loaded."""

    value: T | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _ParticipantDetails:
    waiting: tuple[str, ...] = ()
    max_read_position: str | None = None
    pending_transactions: int = 0


def read_open_transactions(admin: BrokerAdmin, reader: ZnodeReader, ledgers_root: str) -> TransactionReport:
    """Ask all coordinators, or read their logs, and then ask participants for what the coordinators do not report.

    Raises:
        AdminRequestFailed: The list of coordinators cannot be read.
        InvalidInput: The file of the token cannot be read.
    """
    coordinators = [coordinator for coordinator, _ in _list_coordinators(admin)]
    reports = _run_in_threads(partial(_ask_coordinator, admin), coordinators)
    directory = BookieDirectory(reader, ledgers_root)
    transactions: list[OpenTransaction] = []
    problems: list[str] = []
    for coordinator, report in zip(coordinators, reports, strict=True):
        if report.value is not None:
            transactions += report.value
            continue
        logged, log_problems = _read_from_log(
            admin, reader, directory, ledgers_root, coordinator, coordinator_problem=report.problem
        )
        transactions += logged
        problems += log_problems
    transactions, detail_problems = _complete_participants(admin, transactions)
    transactions.sort(key=lambda each: (each.opened_ms, each.coordinator, each.sequence))
    return TransactionReport(tuple(transactions), (*problems, *detail_problems))


def find_open_transaction(
    admin: BrokerAdmin, reader: ZnodeReader, ledgers_root: str, transaction_id: TransactionId
) -> OpenTransaction | None:
    """Return a transaction with its participants, or `None` if it has ended.

    Raises:
        AdminRequestFailed: The coordinator or a participant gives no answer.
        UnknownObject: The coordinator has not begun such a transaction yet, or does not exist.
        StoreUnavailable, PreconditionFailed, UnreadableMetadata: Neither the coordinator nor its log can be read.
    """
    path = f"{_TRANSACTIONS}/transactionMetadata/{transaction_id.tc_id}/{transaction_id.sequence}"
    is_loaded = True
    transaction: OpenTransaction | None = None
    problems: list[str] = []
    try:
        document = admin.find_json(path, dict, attempts=1)
    except AdminRequestFailed as error:  # the coordinator fails if a participant is not loaded
        if error.status is None or error.status < 500:
            raise
        transaction, problems = _find_in_log(admin, reader, ledgers_root, transaction_id)
    else:
        if document is not None:
            transaction = _parse_transaction(document, path)
        elif not _is_coordinator_loaded(admin, transaction_id):
            is_loaded = False
            transaction, problems = _find_in_log(admin, reader, ledgers_root, transaction_id)
    if transaction is None:
        return None
    (completed,), detail_problems = _complete_participants(admin, [transaction])
    if all_problems := [*problems, *detail_problems]:
        raise StoreUnavailable(f"transaction {transaction_id}: {all_problems[0]}")
    return replace(completed, coordinator_loaded=is_loaded)


def read_participants_after_end(admin: BrokerAdmin, transaction: OpenTransaction) -> tuple[TransactionParticipant, ...]:
    """Ask the participants of an ended transaction what they owe, and what consumers may read.

    Positions stay those of `transaction`. A topic that is not loaded owes nothing: the coordinator loads the topics of
    a transaction, and removes the transaction after all have confirmed.
    """
    ask = partial(_ask_participant_after_end, admin, transaction)
    return tuple(_run_in_threads(ask, transaction.participants))


def abort_transaction(admin: BrokerAdmin, transaction_id: TransactionId) -> None:
    """Ask a coordinator to abort a transaction. It answers after all participants have confirmed.

    A coordinator that no broker has loaded is loaded first. A coordinator that does not answer in time goes on with the
    abort.

    Raises:
        AdminRequestFailed: The abort is not confirmed, but may have happened, or may happen later.
        UnknownObject: The coordinator has not begun such a transaction yet, or does not exist.
    """
    if not _is_coordinator_loaded(admin, transaction_id):
        urls = [url for coordinator, url in _list_coordinators(admin) if coordinator == transaction_id.tc_id]
        if not urls:
            raise UnknownObject("txn", expected="a transaction of an existing coordinator", found=str(transaction_id))
        load_coordinator(admin, urls[0], transaction_id.tc_id)
    admin.send("POST", f"{_TRANSACTIONS}/abortTransaction/{transaction_id.tc_id}/{transaction_id.sequence}")


def _list_coordinators(admin: BrokerAdmin) -> list[tuple[int, str]]:
    """Return the coordinators, and the URL for clients of the broker of each one, "" if it is unknown."""
    path = f"{_TRANSACTIONS}/coordinators"
    return sorted(
        (require_field(row, "id", int, path), _find_text(row, "brokerServiceUrl", path) or "")
        for row in admin.read_json(path, list)
    )


def _is_coordinator_loaded(admin: BrokerAdmin, transaction_id: TransactionId) -> bool:
    """Return whether a broker has loaded the coordinator of a transaction.

    Raises:
        UnknownObject: It is loaded, and has not begun such a transaction yet.
    """
    path = f"{_TRANSACTIONS}/coordinatorStats?coordinatorId={transaction_id.tc_id}"
    statistics = admin.find_json(path, dict)
    if statistics is None:
        return False
    newest = require_field(statistics, "leastSigBits", int, path)
    if transaction_id.sequence > newest:
        expected = f"a transaction up to {transaction_id.tc_id}:{newest}, the newest one"
        raise UnknownObject("txn", expected=expected, found=str(transaction_id))
    return True


def _read_from_log(
    admin: BrokerAdmin,
    reader: ZnodeReader,
    directory: BookieDirectory,
    ledgers_root: str,
    coordinator: int,
    *,
    coordinator_problem: str,
) -> tuple[list[OpenTransaction], list[str]]:
    """Return the transactions in the log of a coordinator that gives no answer, and problems.

    `coordinator_problem` is "" if no broker has loaded the coordinator.
    """
    try:
        logged = read_logged_transactions(reader, directory, ledgers_root, coordinator)
    except (StoreUnavailable, PreconditionFailed, UnreadableMetadata) as error:
        return [], [f"coordinator {coordinator}: it gives no answer, and its log cannot be read: {error}"]
    if logged is None:  # the coordinator has never been loaded, unless its broker fails
        if coordinator_problem:
            return [], [f"coordinator {coordinator}: it has no log, and its broker fails: {coordinator_problem}"]
        return [], []
    transactions, problems = _ask_logged_participants(admin, coordinator, logged)
    is_loaded = bool(coordinator_problem)
    return [replace(transaction, coordinator_loaded=is_loaded) for transaction in transactions], problems


def _find_in_log(
    admin: BrokerAdmin, reader: ZnodeReader, ledgers_root: str, transaction_id: TransactionId
) -> tuple[OpenTransaction | None, list[str]]:
    """Return the transaction if the coordinator's log has it, and participants that could not be asked."""
    coordinator, directory = transaction_id.tc_id, BookieDirectory(reader, ledgers_root)
    logged = read_logged_transactions(reader, directory, ledgers_root, coordinator)
    if logged is None:
        expected = "a coordinator that has had transactions"
        raise UnknownObject("txn", expected=expected, found=str(transaction_id))
    if transaction_id.sequence not in logged:
        return None, []
    only = {transaction_id.sequence: logged[transaction_id.sequence]}
    (transaction,), problems = _ask_logged_participants(admin, coordinator, only)
    return transaction, problems


def _ask_coordinator(admin: BrokerAdmin, coordinator: int) -> _AskedValue[list[OpenTransaction]]:
    path = f"{_TRANSACTIONS}/slowTransactions/{_ANY_TIMEOUT}?coordinatorId={coordinator}"
    try:
        documents = admin.find_json(path, dict, attempts=1)
        if documents is None:
            return _AskedValue()
        return _AskedValue([_parse_transaction(require_field(documents, name, dict, path), path) for name in documents])
    except AdminRequestFailed as error:
        return _AskedValue(problem=str(error))


def _ask_logged_participants(
    admin: BrokerAdmin, coordinator: int, logged: Mapping[int, LoggedTransaction]
) -> tuple[list[OpenTransaction], list[str]]:
    """Return the transactions of a log with the positions that their participants report, and problems."""
    participants_by_sequence = {
        sequence: [
            TransactionParticipant(topic=topic, subscription=name, owes=ENDS_BY_STATE[transaction.state])
            for topic, name in (*((topic, None) for topic in transaction.topics), *transaction.subscriptions)
        ]
        for sequence, transaction in logged.items()
    }
    parts = [(sequence, each) for sequence, participants in participants_by_sequence.items() for each in participants]
    ask = partial(_ask_position, admin, coordinator)
    answers = dict(zip(parts, _run_in_threads(ask, parts[:_MAX_PARTICIPANTS]), strict=False))
    problems = [answer.problem for answer in answers.values() if answer.problem]
    if len(parts) > len(answers):
        counts = f"{len(parts) - len(answers):,} of {len(parts):,} participants"
        problems.append(f"coordinator {coordinator}: {counts} were not asked for positions")

    def complete(sequence: int, participant: TransactionParticipant) -> TransactionParticipant:
        answer = answers.get((sequence, participant))
        return answer.value if answer and answer.value else participant

    transactions = [
        OpenTransaction(
            coordinator=coordinator,
            sequence=sequence,
            state=transaction.state,
            opened_ms=transaction.opened_ms,
            timeout_ms=transaction.timeout_ms,
            participants=_sort_participants(complete(sequence, each) for each in participants_by_sequence[sequence]),
        )
        for sequence, transaction in logged.items()
    ]
    return transactions, problems


def _ask_position(
    admin: BrokerAdmin, coordinator: int, part: tuple[int, TransactionParticipant]
) -> _AskedValue[TransactionParticipant]:
    """Return a participant with its position. The topic is not loaded because of the question."""
    sequence, participant = part
    try:
        path = format_topic_path(participant.topic)
        if participant.subscription is None:
            kind, field = "transactionInBufferStats", "startPosition"
        else:
            kind, field = "transactionInPendingAckStats", "cumulativeAckPosition"
            path = f"{path}/{quote(participant.subscription, safe='')}"
        path = f"{_TRANSACTIONS}/{kind}/{path}/{coordinator}/{sequence}"
        document = admin.find_json(path, dict, attempts=1)
        if document is None:
            return _AskedValue(replace(participant, loaded=False))
        position = _find_text(document, field, path)
    except (AdminRequestFailed, InvalidInput) as error:
        return _AskedValue(problem=f"{participant.topic}: {error}")
    has_no_part = participant.subscription is None and position is None
    return _AskedValue(
        replace(
            participant,
            position=position,
            owes=NOTHING if has_no_part else participant.owes,
            was_aborted=document.get("aborted") is True,
        )
    )


def _ask_participant_after_end(
    admin: BrokerAdmin, transaction: OpenTransaction, participant: TransactionParticipant
) -> TransactionParticipant:
    before = replace(participant, owes="abort", waiting=(), max_read_position=None, loaded=True)
    answer = _ask_position(admin, transaction.coordinator, (transaction.sequence, before))
    if answer.value is None:
        return replace(before, problem=answer.problem)
    if not answer.value.loaded:
        return replace(before, owes=NOTHING, loaded=False)
    now = replace(answer.value, position=before.position, owes=before.owes if answer.value.position else NOTHING)
    if now.subscription is None and now.position is None:
        return now
    details = _ask_participant(admin, (now.topic, now.subscription))
    if details.value is None:
        return replace(now, problem=details.problem)
    return _add_details(now, details.value)


def _parse_transaction(document: dict[str, Any], path: str) -> OpenTransaction:
    txn_id = require_field(document, "txnId", str, path)
    state = require_field(document, "status", str, path)
    match = _ID_PATTERN.fullmatch(txn_id)
    if not match or state not in ENDS_BY_STATE:
        expected = f"a transaction such as (0,1) in a state of {', '.join(ENDS_BY_STATE)}"
        raise AdminRequestFailed(
            path, expected=expected, found=f"{txn_id} in state {state}", advice=ADVICE_UNKNOWN_VERSION
        )
    participants: list[TransactionParticipant] = []
    produced = require_field(document, "producedPartitions", dict, path)
    for topic in produced:
        position = _find_text(require_field(produced, topic, dict, path), "startPosition", path)
        owes = ENDS_BY_STATE[state] if position else NOTHING
        participants.append(TransactionParticipant(topic=topic, subscription=None, owes=owes, position=position))
    acknowledged = require_field(document, "ackedPartitions", dict, path)
    for topic in acknowledged:
        subscriptions = require_field(acknowledged, topic, dict, path)
        for subscription in subscriptions:
            position = _find_text(require_field(subscriptions, subscription, dict, path), "cumulativeAckPosition", path)
            participants.append(
                TransactionParticipant(
                    topic=topic, subscription=subscription, owes=ENDS_BY_STATE[state], position=position
                )
            )
    return OpenTransaction(
        coordinator=int(match[1]),
        sequence=int(match[2]),
        state=state,
        opened_ms=require_field(document, "openTimestamp", int, path),
        timeout_ms=require_field(document, "timeoutAt", int, path),  # a duration, despite its name
        participants=_sort_participants(participants),
    )


def _sort_participants(participants: Iterable[TransactionParticipant]) -> tuple[TransactionParticipant, ...]:
    return tuple(sorted(participants, key=lambda each: (each.topic, each.subscription or "")))


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
    asked_names = list(unknown)[:_MAX_PARTICIPANTS]
    answers = dict(zip(asked_names, _run_in_threads(partial(_ask_participant, admin), asked_names), strict=True))
    problems = [answer.problem for answer in answers.values() if answer.problem]
    if len(unknown) > len(answers):
        counts = f"{len(unknown) - len(answers):,} of {len(unknown):,} participants"
        problems.append(f"{counts} were not asked for details")

    def complete(participant: TransactionParticipant) -> TransactionParticipant:
        answer = answers.get((participant.topic, participant.subscription))
        if answer is None or answer.value is None:
            return participant
        has_ended = participant.subscription is not None and not answer.value.pending_transactions
        return _add_details(replace(participant, owes=NOTHING if has_ended else participant.owes), answer.value)

    completed = [replace(each, participants=tuple(map(complete, each.participants))) for each in transactions]
    return completed, problems


def _add_details(participant: TransactionParticipant, details: _ParticipantDetails) -> TransactionParticipant:
    return replace(
        participant,
        waiting=details.waiting,
        max_read_position=details.max_read_position,
        pending_transactions=details.pending_transactions,
    )


def _ask_participant(admin: BrokerAdmin, participant: tuple[str, str | None]) -> _AskedValue[_ParticipantDetails]:
    """Return what the consumers of a topic may read, or how many transactions a subscription waits for."""
    topic, subscription = participant
    try:
        topic_path = format_topic_path(topic)
        if subscription is None:
            return _AskedValue(_read_consumers(admin, topic_path))
        path = f"{_TRANSACTIONS}/pendingAckStats/{topic_path}/{quote(subscription, safe='')}"
        pending = require_field(admin.read_json(path, dict), "ongoingTxnSize", int, path)
        return _AskedValue(_ParticipantDetails(pending_transactions=pending))
    except (AdminRequestFailed, InvalidInput) as error:
        return _AskedValue(problem=f"{topic}: {error}")


def _read_consumers(admin: BrokerAdmin, topic_path: str) -> _ParticipantDetails:
    """Return the max read position, and the subscriptions whose next message is behind it.

    The topic is loaded, because a coordinator has reported a position of it.
    """
    path = f"{_TRANSACTIONS}/transactionBufferStats/{topic_path}"
    readable = _require_position(admin.read_json(path, dict), "maxReadPosition", path)
    path = f"/admin/v2/persistent/{topic_path}/internalStats"
    statistics = admin.read_json(path, dict)
    max_read_position = f"{readable[0]}:{readable[1]}"
    if _require_position(statistics, "lastConfirmedEntry", path) <= readable:
        return _ParticipantDetails(max_read_position=max_read_position)
    cursors = require_field(statistics, "cursors", dict, path)
    waiting = (
        name
        for name in cursors
        if name not in _NO_READERS and _require_position(cursors[name], "readPosition", path) > readable
    )
    return _ParticipantDetails(waiting=tuple(sorted(waiting)), max_read_position=max_read_position)


def _require_position(document: Any, name: str, path: str) -> tuple[int, int]:  # noqa: ANN401 - parsed JSON
    text = require_field(document, name, str, path)
    match = _POSITION_PATTERN.fullmatch(text)
    if not match:
        raise AdminRequestFailed(
            path, expected=f"{name} such as 7:4", found=shorten_text(repr(text)), advice=ADVICE_UNKNOWN_VERSION
        )
    return parse_position(text)


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
