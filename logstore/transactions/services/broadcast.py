"""The broadcast of decided transactions: each participant's topic is told in its own log, and its buffer settled.

Nothing here changes what readers see: the state of the transaction's row has decided that. A topic is told with one
append for all transactions of a batch; what was told is settled in one SQL transaction for all topics after it, and a
transaction that owes nothing more is final with it.

Any step may run twice. A marker that is written again says the same of the same transaction, and is hidden as the first
one is; what is settled stays so. A process may die between any two steps: what it had claimed is claimed again.

Source: Pulsar's transaction coordinator, which sends the end to each partition and subscription on its own.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Final

from logstore.deletion.retention import RetentionPolicy
from logstore.errors import PreconditionFailed, SextonError, StaleCatalog, TerminalError, UnknownObject
from logstore.failpoints import effect
from logstore.log.services import ManagedLedger
from logstore.ports.catalog import (
    Finished,
    Settled,
    StoredParticipant,
    StoredTransaction,
    Topic,
    Topics,
    TopicState,
    Transactions,
)
from logstore.positions import TopicId
from logstore.transactions.buffer import Marker, Verb, as_entries
from logstore.transactions.transactions import Participant, TransactionId

_LOG: Final = logging.getLogger(__name__)
_TOPICS: Final = 32
"""Topics that are told at a time: each waits for storage."""


@dataclass(frozen=True, slots=True)
class _Failure:
    sentence: str
    passes: bool  # by itself, perhaps: storage or catalog did not answer


_Told = tuple[StoredTransaction, StoredParticipant]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcasted:
    """What became of a batch of transactions."""

    finished: Sequence[Finished] = ()
    failures: Mapping[TransactionId, Mapping[Participant, str]] = field(default_factory=dict)
    topics: int = 0
    topics_away: int = 0  # of those, for which storage or catalog did not answer


class Broadcasts:
    """Tells participants. Threads share one; close it."""

    def __init__(
        self,
        *,
        transactions: Transactions,
        topics: Topics,
        managed: ManagedLedger,
        epoch: Callable[[], int],
        advance: Callable[[TopicId, str], object],
    ) -> None:
        """Work on a catalog and its log.

        Args:
            transactions: The catalog's transactions.
            topics: The catalog's topics.
            managed: The log, to which markers are appended.
            epoch: The catalog's epoch now.
            advance: Moves a subscription over what has become contiguous; may fail, and is then done by the next
                acknowledgement.
        """
        self._transactions, self._topics, self._managed = transactions, topics, managed
        self._epoch, self._advance = epoch, advance
        self._threads = ThreadPoolExecutor(_TOPICS, thread_name_prefix="broadcast")

    def close(self) -> None:
        """End the threads; what is under way ends first."""
        self._threads.shutdown()

    def settle(self, batch: Sequence[StoredTransaction]) -> Broadcasted:
        """Tell all participants that are owed, topic by topic; a topic that fails holds up no other.

        Args:
            batch: Decided transactions, claimed by the caller.

        Raises:
            StoreUnavailable, CatalogBusy: The catalog did not answer; nothing is lost, claims lapse.
        """
        owed: dict[TopicId, list[_Told]] = {}
        for txn in batch:
            for one in txn.owed:
                owed.setdefault(one.participant.topic_id, []).append((txn, one))
        epoch = self._epoch()
        calls = {
            topic_id: self._threads.submit(copy_context().run, self._tell, topic_id, told, epoch)
            for topic_id, told in owed.items()
        }
        failures: dict[TransactionId, dict[Participant, str]] = {}
        done: list[tuple[TransactionId, Participant, Settled]] = []
        away = 0
        for topic_id, call in calls.items():
            how = call.result()
            away += isinstance(how, _Failure) and how.passes
            for txn, one in owed[topic_id]:
                if isinstance(how, _Failure):
                    failures.setdefault(txn.txn, {})[one.participant] = how.sentence
                else:
                    done.append((txn.txn, one.participant, how))
        finished = self._transactions.settle(done) if done else []
        self._move_on(batch, {one.txn for one in finished})
        return Broadcasted(finished=finished, failures=failures, topics=len(calls), topics_away=away)

    def _tell(self, topic_id: TopicId, told: Sequence[_Told], epoch: int) -> Settled | _Failure:
        """Mark one topic; or the error in one sentence."""
        try:
            return self._mark(topic_id, told, epoch)
        except SextonError as error:
            _LOG.warning("topic %s: %d transactions could not be told: %s", topic_id, len(told), error)
            return _Failure(f"{type(error).__name__}: {error}", passes=not isinstance(error, TerminalError))
        except Exception as defect:  # noqa: BLE001 - whatever it is, the other topics are told
            _LOG.exception("topic %s: %d transactions could not be told", topic_id, len(told))
            return _Failure(f"{type(defect).__name__}: {str(defect).partition(chr(10))[0]}", passes=False)

    def _mark(self, topic_id: TopicId, told: Sequence[_Told], epoch: int) -> Settled:
        """Append the markers of a topic, in the order of transactions; a topic that is gone needs none."""
        markers = [
            Marker(
                txn=txn.txn,
                verb=Verb.COMMIT if txn.state.commits else Verb.ABORT,
                epoch=epoch,
                subscription=one.participant.subscription,
                positions=one.positions if txn.state.commits else {},
            )
            for txn, one in told
        ]
        name = told[0][1].topic
        topic = Topic(topic_id=topic_id, name=name, state=TopicState.ACTIVE, policy=RetentionPolicy(), created_us=0)
        try:
            with effect("transactions.append_markers"):
                self._managed.append(topic, as_entries(markers))
        except (UnknownObject, PreconditionFailed) as error:
            if isinstance(error, StaleCatalog) or self._stands(topic_id):
                raise
            return Settled.GONE
        return Settled.MARKED

    def _stands(self, topic_id: TopicId) -> bool:
        """Whether the topic is there, and not being deleted: then a refusal has another reason."""
        try:
            return self._topics.by_id(topic_id).state is TopicState.ACTIVE
        except UnknownObject:
            return False

    def _move_on(self, batch: Sequence[StoredTransaction], finished: set[TransactionId]) -> None:
        """Let subscriptions move over what was acknowledged: no caller waits for it, and it may fail."""
        moved = {
            (one.participant.topic_id, one.participant.subscription)
            for txn in batch
            if txn.txn in finished and txn.state.commits
            for one in txn.participants
            if one.participant.subscription
        }
        for topic_id, subscription in sorted(moved):
            self._threads.submit(copy_context().run, self._advanced, topic_id, subscription)

    def _advanced(self, topic_id: TopicId, subscription: str) -> None:
        try:
            self._advance(topic_id, subscription)
        except SextonError as error:
            _LOG.info(
                "topic %s, subscription %s: moves on with its next acknowledgement: %s", topic_id, subscription, error
            )
