"""Broadcast of decided transactions: transaction markers in logs, and settled participants in the catalog.

A broadcast does not change what readers see, because readers follow the state of the transaction's row. A topic gets
one append with the transaction markers of a whole batch. One SQL transaction then settles the participants of all
topics. The SQL transaction finishes each decided transaction whose participants are all settled.

The append and the SQL transaction may run twice. A second marker says the same as the first marker, and is hidden, too.
To settle a participant again changes nothing. If the process dies between append and SQL transaction, another process
claims the transactions later.

Source: Pulsar's transaction coordinator, which sends the decision to each partition and subscription separately.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Final

from logstore.catalog.log.topics import Topics
from logstore.catalog.transactions.sql_transactions import Transactions
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import PreconditionFailed, SextonError, StaleCatalog, TerminalError, UnknownObject
from logstore.failpoints import effect
from logstore.log.services import TopicLogs
from logstore.ports.catalog.log import Topic, TopicState
from logstore.ports.catalog.transactions import (
    FinishedTransaction,
    SettlementReason,
    StoredParticipant,
    StoredTransaction,
)
from logstore.positions import TopicId
from logstore.transactions.transaction_buffer import MarkerVerb, TransactionMarker, markers_to_entries
from logstore.transactions.transaction_ids_and_states import Participant, TransactionId

_LOG: Final = logging.getLogger(__name__)
_MAX_CONCURRENT_TOPICS: Final = 32
"""Number of threads. The threads mostly wait for storage."""


@dataclass(frozen=True, slots=True)
class _TopicFailure:
    message: str
    is_transient: bool  # storage or the catalog did not answer


_OwedDecision = tuple[StoredTransaction, StoredParticipant]


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastResult:
    finished: Sequence[FinishedTransaction] = ()
    failures: Mapping[TransactionId, Mapping[Participant, str]] = field(default_factory=dict)
    topics: int = 0  # topics of all participants that were owed
    topics_away: int = 0  # those of `topics` for which storage or the catalog did not answer


class Broadcaster:
    """Sender of decisions to participants. Thread-safe. Close a broadcaster after use.

    `advance` moves the mark-delete position of a subscription over contiguous acknowledgements. If `advance` fails, the
    subscription's next acknowledgement moves the position.
    """

    def __init__(
        self,
        *,
        transactions: Transactions,
        topics: Topics,
        topic_logs: TopicLogs,
        epoch: Callable[[], int],
        advance: Callable[[TopicId, str], object],
    ) -> None:
        self._transactions, self._topics, self._topic_logs = transactions, topics, topic_logs
        self._epoch, self._advance = epoch, advance
        self._threads = ThreadPoolExecutor(_MAX_CONCURRENT_TOPICS, thread_name_prefix="broadcast")

    def close(self) -> None:
        self._threads.shutdown()

    def broadcast_batch(self, batch: Sequence[StoredTransaction]) -> BroadcastResult:
        """Tell all owed participants of a batch of claimed transactions. A failed topic delays no other topic.

        If the catalog does not answer, nothing is lost: the claims expire, and a later broadcast continues.
        """
        owed_by_topic: dict[TopicId, list[_OwedDecision]] = {}
        for txn in batch:
            for stored in txn.owed:
                owed_by_topic.setdefault(stored.participant.topic_id, []).append((txn, stored))
        epoch = self._epoch()
        calls = {
            topic_id: self._threads.submit(copy_context().run, self._try_to_append_markers, topic_id, owed, epoch)
            for topic_id, owed in owed_by_topic.items()
        }
        failures: dict[TransactionId, dict[Participant, str]] = {}
        settled: list[tuple[TransactionId, Participant, SettlementReason]] = []
        topics_away = 0
        for topic_id, call in calls.items():
            outcome = call.result()
            topics_away += isinstance(outcome, _TopicFailure) and outcome.is_transient
            for txn, stored in owed_by_topic[topic_id]:
                if isinstance(outcome, _TopicFailure):
                    failures.setdefault(txn.txn, {})[stored.participant] = outcome.message
                else:
                    settled.append((txn.txn, stored.participant, outcome))
        finished = self._transactions.settle_participants(settled) if settled else []
        self._advance_subscriptions(batch, {transaction.txn for transaction in finished})
        return BroadcastResult(finished=finished, failures=failures, topics=len(calls), topics_away=topics_away)

    def _try_to_append_markers(
        self, topic_id: TopicId, owed: Sequence[_OwedDecision], epoch: int
    ) -> SettlementReason | _TopicFailure:
        try:
            return self._append_markers_unless_gone(topic_id, owed, epoch)
        except SextonError as error:
            _LOG.warning("topic %s: %d transactions could not be told: %s", topic_id, len(owed), error)
            return _TopicFailure(f"{type(error).__name__}: {error}", is_transient=not isinstance(error, TerminalError))
        except Exception as defect:  # noqa: BLE001 - no defect of one topic may delay the other topics
            _LOG.exception("topic %s: %d transactions could not be told", topic_id, len(owed))
            first_line = str(defect).partition("\n")[0]
            return _TopicFailure(f"{type(defect).__name__}: {first_line}", is_transient=False)

    def _append_markers_unless_gone(
        self, topic_id: TopicId, owed: Sequence[_OwedDecision], epoch: int
    ) -> SettlementReason:
        markers = [
            TransactionMarker(
                txn=txn.txn,
                verb=MarkerVerb.COMMIT if txn.state.is_commit else MarkerVerb.ABORT,
                epoch=epoch,
                subscription=stored.participant.subscription,
                positions=stored.positions if txn.state.is_commit else {},
            )
            for txn, stored in owed
        ]
        name = owed[0][1].topic
        topic = Topic(topic_id=topic_id, name=name, state=TopicState.ACTIVE, policy=RetentionPolicy(), created_us=0)
        try:
            with effect("transactions.append_markers"):
                self._topic_logs.append(topic, markers_to_entries(markers))
        except (UnknownObject, PreconditionFailed) as error:
            # Only a topic that is not active is gone. Any other refusal is an error.
            if isinstance(error, StaleCatalog) or self._is_active(topic_id):
                raise
            return SettlementReason.GONE
        return SettlementReason.MARKED

    def _is_active(self, topic_id: TopicId) -> bool:
        try:
            return self._topics.get_topic_by_id(topic_id).state is TopicState.ACTIVE
        except UnknownObject:
            return False

    def _advance_subscriptions(self, batch: Sequence[StoredTransaction], finished: set[TransactionId]) -> None:
        subscriptions = {
            (stored.participant.topic_id, stored.participant.subscription)
            for txn in batch
            if txn.txn in finished and txn.state.is_commit
            for stored in txn.participants
            if stored.participant.subscription
        }
        for topic_id, subscription in sorted(subscriptions):
            self._threads.submit(copy_context().run, self._advance_subscription, topic_id, subscription)

    def _advance_subscription(self, topic_id: TopicId, subscription: str) -> None:
        try:
            self._advance(topic_id, subscription)
        except SextonError as error:
            _LOG.info(
                "topic %s, subscription %s: moves on with its next acknowledgement: %s", topic_id, subscription, error
            )
