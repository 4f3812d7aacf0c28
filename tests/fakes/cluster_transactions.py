"""Transactions of a Pulsar cluster in memory, with one topic and one subscription each."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from logstore.errors import StoreUnavailable, UnknownObject
from logstore.failpoints import effect
from logstore.pulsar.cluster_transactions import (
    ENDS_BY_STATE,
    NOTHING,
    OpenTransaction,
    TransactionParticipant,
    TransactionReport,
)
from logstore.transactions.transaction_ids_and_states import TransactionId

TOPIC = "persistent://shop/main/orders"


@dataclass
class FakeTransaction:
    """A transaction, also after its end."""

    sequence: int
    state: str = "OPEN"
    opened_ms: int = 1_000
    read_error: Exception | None = None  # of each look at the transaction
    is_stuck: bool = False  # whether its participants never confirm an end
    has_messages: bool = True
    commits_first: bool = False  # whether a commit comes before the next abort

    def participants(self) -> tuple[TransactionParticipant, ...]:
        """Return the participants while it is open."""
        subscription = TransactionParticipant(
            topic=TOPIC, subscription="billing", owes=ENDS_BY_STATE.get(self.state, NOTHING)
        )
        if not self.has_messages:
            return (subscription,)
        messages = replace(
            subscription, subscription=None, position=f"5:{self.sequence}", max_read_position="5:0", waiting=("search",)
        )
        return (messages, subscription)


class FakeClusterTransactions:
    """The port `ClusterTransactions`. All transactions have one coordinator."""

    def __init__(self, read_identity: Callable[[], str]) -> None:
        self.read_identity = read_identity
        self.transactions: dict[int, FakeTransaction] = {}
        self.before_abort: Callable[[], None] = lambda: None
        self.abort_error: Exception | None = None  # raised after each abort
        self.aborts: list[str] = []

    def add(self, *sequences: int) -> None:
        """Begin transactions, long ago."""
        self.transactions |= {sequence: FakeTransaction(sequence) for sequence in sequences}

    def list_open(self) -> TransactionReport:
        """See the port."""
        is_open = [each for each in self.transactions.values() if each.state in ENDS_BY_STATE]
        return TransactionReport(tuple(map(_make_open_transaction, is_open)), ())

    def find(self, transaction_id: TransactionId) -> OpenTransaction | None:
        """See the port."""
        transaction = self.transactions.get(transaction_id.sequence)
        if transaction is None:
            raise UnknownObject("txn", expected="a transaction of the coordinator", found=str(transaction_id))
        if transaction.read_error:
            raise transaction.read_error
        return _make_open_transaction(transaction) if transaction.state in ENDS_BY_STATE else None

    def read_participants_after_end(self, transaction: OpenTransaction) -> tuple[TransactionParticipant, ...]:
        """See the port."""
        ended = self.transactions[transaction.sequence]
        starts = [each.sequence for each in self.transactions.values() if each.state in ENDS_BY_STATE]
        readable = f"5:{min(starts) - 1}" if starts else "5:99"
        return tuple(
            replace(
                participant,
                owes=NOTHING,
                waiting=("search",) if starts and participant.subscription is None else (),
                max_read_position=readable if participant.subscription is None else None,
                was_aborted=ended.state == "ABORTED" and participant.subscription is None,
            )
            for participant in transaction.participants
        )

    def abort(self, transaction_id: TransactionId) -> None:
        """See the port."""
        self.before_abort()
        transaction = self.transactions[transaction_id.sequence]
        with effect("pulsar.abort_transaction"):
            self.aborts.append(str(transaction_id))
            if transaction.commits_first:
                transaction.state = "COMMITTED"
                raise StoreUnavailable(f"transaction {transaction_id}: expected OPEN, found COMMITTED")
            if transaction.state in ENDS_BY_STATE:
                transaction.state = "ABORTING" if transaction.is_stuck else "ABORTED"
        if transaction.is_stuck:
            raise StoreUnavailable("POST: expected success, found no answer in time")
        if self.abort_error:
            raise self.abort_error


def _make_open_transaction(transaction: FakeTransaction) -> OpenTransaction:
    return OpenTransaction(
        coordinator=0,
        sequence=transaction.sequence,
        state=transaction.state,
        opened_ms=transaction.opened_ms,
        timeout_ms=7_200_000,
        participants=transaction.participants(),
    )
