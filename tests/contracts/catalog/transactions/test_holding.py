"""Acknowledgements in a transaction: held until it is decided, all or nothing, and by one transaction at a time."""

import pytest

from logstore.errors import AcknowledgementHeld, InvalidInput, TransactionNotOpen, UnknownObject
from logstore.ports.catalog.log import (
    AcknowledgeResult,
    AcknowledgeWrite,
    EndTransactionResult,
    EndTransactionWrite,
    GroupCommitWrite,
    Topic,
)
from logstore.positions import Position
from logstore.transactions.transaction_ids_and_states import TransactionId, TransactionState
from tests.contracts.catalog.blocking import behind
from tests.contracts.catalog.steps import acknowledge, at, new_topic, race, roll
from tests.contracts.catalog.transactions.steps import begin, end, hold, one, produce, settle
from tests.contracts.catalog.worlds import SqlWorld

pytestmark = pytest.mark.postgres
_SUB = "billing"


@pytest.fixture
def topic(sql_world: SqlWorld) -> Topic:
    """Ten entries and a subscription that stands before them."""
    found = new_topic(sql_world)
    produce(sql_world, found, (None, 10))
    sql_world.catalog.cursors.create_subscription(found.topic_id, _SUB, latest=False)
    return found


def _entry(world: SqlWorld, topic: Topic, number: int) -> Position:
    return at(world.catalog.ledgers.list_ledgers(topic.topic_id)[0].ledger_id, number)


def _covered(world: SqlWorld, topic: Topic) -> list[int]:
    state = world.catalog.cursors.get_cursor(topic.topic_id, _SUB).state
    return [number for number in range(10) if state.covers(_entry(world, topic, number))]


def test_commit_acknowledges_what_was_held_and_abort_releases_it(sql_world: SqlWorld, topic: Topic) -> None:
    """At once, before anything is told to the log."""
    kept, gone = begin(sql_world), begin(sql_world)
    hold(sql_world, topic, _SUB, kept, _entry(sql_world, topic, 1), _entry(sql_world, topic, 3))
    hold(sql_world, topic, _SUB, kept, _entry(sql_world, topic, 4))
    hold(sql_world, topic, _SUB, gone, _entry(sql_world, topic, 0))
    assert _covered(sql_world, topic) == []
    assert set(sql_world.catalog.transactions.find_held_entries(topic.topic_id, _SUB)) == {kept, gone}
    end(sql_world, kept, commit=True)
    end(sql_world, gone, commit=False)
    assert _covered(sql_world, topic) == [1, 3, 4]
    assert sql_world.catalog.transactions.find_held_entries(topic.topic_id, _SUB) == {}
    positions = sql_world.catalog.transactions.get_transaction(kept).participants[0].positions
    assert [list(bits) for bits in positions.values()] == [[1, 3, 4]], "its marker tells them"


def test_abort_releases_exactly_what_its_own_transaction_held(sql_world: SqlWorld, topic: Topic) -> None:
    """Source: apache/pulsar#14327."""
    first, second = begin(sql_world), begin(sql_world)
    hold(sql_world, topic, _SUB, first, _entry(sql_world, topic, 0))
    hold(sql_world, topic, _SUB, second, _entry(sql_world, topic, 1))
    end(sql_world, second, commit=False)
    held = sql_world.catalog.transactions.find_held_entries(topic.topic_id, _SUB)
    assert list(held) == [first]


def test_an_entry_is_held_by_one_transaction_and_never_after_it_was_acknowledged(
    sql_world: SqlWorld, topic: Topic
) -> None:
    """The same one may ask again."""
    first, second = begin(sql_world), begin(sql_world)
    entry = _entry(sql_world, topic, 2)
    for _ in range(2):
        assert isinstance(hold(sql_world, topic, _SUB, first, entry), AcknowledgeResult)
    refused = hold(sql_world, topic, _SUB, second, _entry(sql_world, topic, 5), entry)
    assert isinstance(refused, AcknowledgementHeld)
    assert str(refused).endswith(f"expected entry {entry} to be free, found it held by transaction {first}")
    assert second not in sql_world.catalog.transactions.find_held_entries(topic.topic_id, _SUB), (
        "nothing of it was held"
    )
    end(sql_world, first, commit=True)
    assert isinstance(hold(sql_world, topic, _SUB, second, entry), AcknowledgementHeld)
    acknowledge(sql_world, topic.topic_id, _SUB, (entry.ledger_id, 7))
    assert isinstance(hold(sql_world, topic, _SUB, second, at(entry.ledger_id, 7)), AcknowledgementHeld)


def test_many_transactions_at_once_hold_an_entry_for_one_of_them(sql_world: SqlWorld, topic: Topic) -> None:
    """The cursor's lock decides."""
    txns = [begin(sql_world) for _ in range(8)]
    answers = race(lambda n: hold(sql_world, topic, _SUB, txns[n], _entry(sql_world, topic, 0)), runners=8)
    assert sum(isinstance(answer, AcknowledgeResult) for answer in answers) == 1
    assert sum(isinstance(answer, AcknowledgementHeld) for answer in answers) == 7


def test_up_to_holds_what_is_left_up_to_there_and_meets_what_others_hold(sql_world: SqlWorld, topic: Topic) -> None:
    """Entries that are acknowledged are left out."""
    first, second = begin(sql_world), begin(sql_world)
    ledger = _entry(sql_world, topic, 0).ledger_id
    acknowledge(sql_world, topic.topic_id, _SUB, up_to=(ledger, 1))
    acknowledge(sql_world, topic.topic_id, _SUB, (ledger, 3))
    hold(sql_world, topic, _SUB, first, up_to=at(ledger, 5))
    assert [
        list(bits) for bits in sql_world.catalog.transactions.find_held_entries(topic.topic_id, _SUB)[first].values()
    ] == [[2, 4, 5]]
    assert isinstance(hold(sql_world, topic, _SUB, second, up_to=at(ledger, 9)), AcknowledgementHeld)
    end(sql_world, first, commit=True)
    assert _covered(sql_world, topic) == [0, 1, 2, 3, 4, 5]
    assert isinstance(hold(sql_world, topic, _SUB, second, up_to=at(ledger, 9)), AcknowledgeResult)


def test_a_plain_acknowledgement_of_what_an_open_transaction_holds_is_refused(
    sql_world: SqlWorld, topic: Topic
) -> None:
    """Of single entries, or of a range; others are acknowledged, and so is this one when the transaction has ended."""
    txn, other = begin(sql_world), begin(sql_world)
    entry, ledger = _entry(sql_world, topic, 2), _entry(sql_world, topic, 0).ledger_id
    hold(sql_world, topic, _SUB, txn, entry, at(ledger, 4))

    def plain(*positions: Position, up_to: Position | None = None) -> object:
        write = AcknowledgeWrite(topic_id=topic.topic_id, subscription=_SUB, positions=positions, up_to=up_to)
        return one(sql_world, write)

    refused = plain(at(ledger, 1), entry)
    assert isinstance(refused, AcknowledgementHeld)
    told = f"expected entry {entry} to be free, found it held by transaction {txn}; commit or abort that first"
    assert str(refused).endswith(told)
    assert _covered(sql_world, topic) == [], "nothing of it was acknowledged"
    assert isinstance(plain(up_to=at(ledger, 3)), AcknowledgementHeld)
    assert isinstance(plain(at(ledger, 3)), AcknowledgeResult)
    assert isinstance(plain(up_to=at(ledger, 1)), AcknowledgeResult)
    assert isinstance(plain(), AcknowledgeResult), "without entries there is no conflict"
    end(sql_world, other, commit=False)
    end(sql_world, txn, commit=True)
    assert _covered(sql_world, topic) == [0, 1, 2, 3, 4]
    assert isinstance(plain(entry, up_to=at(ledger, 5)), AcknowledgeResult)


def test_cumulative_acknowledgement_up_to_exactly_a_held_entry_is_refused(sql_world: SqlWorld, topic: Topic) -> None:
    """The bound is inclusive; the entry before it is free."""
    txn = begin(sql_world)
    held = _entry(sql_world, topic, 3)
    hold(sql_world, topic, _SUB, txn, held)
    exactly = AcknowledgeWrite(topic_id=topic.topic_id, subscription=_SUB, up_to=held)
    before = AcknowledgeWrite(topic_id=topic.topic_id, subscription=_SUB, up_to=_entry(sql_world, topic, 2))
    refused, answered = sql_world.catalog.commits.commit_writes([exactly, before])
    assert isinstance(refused, AcknowledgementHeld)
    assert f"expected entry {held} to be free" in str(refused)
    assert answered == AcknowledgeResult(mark_delete=_entry(sql_world, topic, 2))


def test_acknowledgement_that_dies_anywhere_holds_nothing_and_can_be_asked_again(
    sql_world: SqlWorld, topic: Topic
) -> None:
    """Nothing half-made stays, neither a participant nor a subscription nobody can use (apache/pulsar#13767)."""
    txn, entry, deaths = begin(sql_world), _entry(sql_world, topic, 4), 0
    for _ in sql_world.deaths_in(lambda: hold(sql_world, topic, _SUB, txn, entry)):
        deaths += 1
        assert sql_world.catalog.transactions.find_held_entries(topic.topic_id, _SUB) == {}
        assert sql_world.catalog.transactions.get_transaction(txn).participants == []
    assert deaths > 3
    for _ in sql_world.deaths_in(lambda: end(sql_world, txn, commit=True)):
        assert _covered(sql_world, topic) == []
        assert sql_world.catalog.transactions.get_transaction(txn).state is TransactionState.OPEN
    assert _covered(sql_world, topic) == [4]


def test_acknowledgement_outside_open_changes_nothing(sql_world: SqlWorld, topic: Topic) -> None:
    """Source: apache/pulsar#15524."""
    txn = begin(sql_world)
    end(sql_world, txn, commit=True)
    assert isinstance(hold(sql_world, topic, _SUB, txn, _entry(sql_world, topic, 0)), TransactionNotOpen)
    assert isinstance(hold(sql_world, topic, _SUB, TransactionId(3, 3), _entry(sql_world, topic, 0)), UnknownObject)
    assert _covered(sql_world, topic) == []


def test_entry_of_a_ledger_that_is_gone_is_acknowledged_for_good(sql_world: SqlWorld, topic: Topic) -> None:
    """So no transaction can have it, whatever its number, and whoever asks in the same commit is not disturbed."""
    first, second = begin(sql_world), begin(sql_world)
    gone = _entry(sql_world, topic, 0).ledger_id
    roll(sql_world, topic.topic_id)
    left = produce(sql_world, topic, (None, 2))
    sql_world.detach(topic.topic_id, [gone])
    for entry in (3, 2**40):
        asked = [
            AcknowledgeWrite(topic_id=topic.topic_id, subscription=_SUB, positions=(at(gone, entry), left), txn=first),
            AcknowledgeWrite(topic_id=topic.topic_id, subscription=_SUB, positions=(left,), txn=second),
        ]
        refused, taken = sql_world.catalog.commits.commit_writes(asked)
        assert isinstance(refused, AcknowledgementHeld), refused
        assert isinstance(taken, AcknowledgeResult)
    assert set(sql_world.catalog.transactions.find_held_entries(topic.topic_id, _SUB)) == {second}


def test_what_no_reader_can_have_met_is_not_acknowledged(sql_world: SqlWorld, topic: Topic) -> None:
    """Neither plainly nor in a transaction: it would never be delivered once its own transaction commits."""
    writer, reader = begin(sql_world), begin(sql_world)
    hidden = produce(sql_world, topic, (writer, 1))
    assert isinstance(hold(sql_world, topic, _SUB, reader, hidden), InvalidInput)
    plain = AcknowledgeWrite(topic_id=topic.topic_id, subscription=_SUB, up_to=hidden)
    assert isinstance(one(sql_world, plain), InvalidInput)
    end(sql_world, writer, commit=True)
    assert isinstance(hold(sql_world, topic, _SUB, reader, hidden), AcknowledgeResult)


def test_mark_delete_passes_what_no_consumer_sees(sql_world: SqlWorld, topic: Topic) -> None:
    """Markers and aborted messages keep no subscription back, and no ledger."""
    txn = begin(sql_world)
    produce(sql_world, topic, (txn, 2))
    end(sql_world, txn, commit=False)
    settle(sql_world, txn, topic)
    produce(sql_world, topic, (None, 1), markers=[0])
    ledger = _entry(sql_world, topic, 0).ledger_id
    answer = acknowledge(sql_world, topic.topic_id, _SUB, up_to=(ledger, 9))
    assert isinstance(answer, AcknowledgeResult)
    assert answer.mark_delete == at(ledger, 12)
    roll(sql_world, topic.topic_id)
    assert sql_world.phase_one(topic.topic_id).ledgers == 1


def test_retention_passes_a_marker_that_came_after_the_last_acknowledgement(sql_world: SqlWorld, topic: Topic) -> None:
    """The cursor's row still stands before it."""
    ledger = _entry(sql_world, topic, 0).ledger_id
    acknowledge(sql_world, topic.topic_id, _SUB, up_to=(ledger, 9))
    produce(sql_world, topic, (None, 1), markers=[0])
    roll(sql_world, topic.topic_id)
    assert sql_world.phase_one(topic.topic_id).ledgers == 1


def test_commit_to_a_subscription_that_was_sought_or_removed_changes_what_still_counts(
    sql_world: SqlWorld, topic: Topic
) -> None:
    """A commit is never refused for what became of a cursor."""
    txn, other = begin(sql_world), begin(sql_world)
    hold(sql_world, topic, _SUB, txn, _entry(sql_world, topic, 1), _entry(sql_world, topic, 6))
    sql_world.catalog.cursors.seek_cursor(topic.topic_id, _SUB, _entry(sql_world, topic, 5))
    end(sql_world, txn, commit=True)
    assert _covered(sql_world, topic) == [0, 1, 2, 3, 4, 6]
    hold(sql_world, topic, _SUB, other, _entry(sql_world, topic, 8))
    sql_world.sql("DELETE FROM cursor")
    assert end(sql_world, other, commit=True).is_commit


@pytest.mark.external_service
def test_commit_locks_all_cursors_that_it_will_need_by_id(postgres_url: str) -> None:
    """Those of ends and those of acknowledgements at once, or two processes would wait for each other: PostgreSQL only.

    While it waits for the first one it holds none that comes behind.
    """
    world = SqlWorld(postgres_url)
    topic = new_topic(world)
    entry = produce(world, topic, (None, 10))
    for name in ("first", "second"):
        world.catalog.cursors.create_subscription(topic.topic_id, name, latest=False)
    txn = begin(world)
    hold(world, topic, "second", txn, entry)
    writes: list[GroupCommitWrite] = [
        EndTransactionWrite(txn=txn, commit=True),
        AcknowledgeWrite(topic_id=topic.topic_id, subscription="first", positions=(entry,)),
    ]
    locks = [f"SELECT 1 FROM cursor WHERE name = '{name}' FOR UPDATE NOWAIT" for name in ("first", "second")]
    answers = behind(world, locks[:1], lambda: world.catalog.commits.commit_writes(writes), locks[1:])
    assert answers == [EndTransactionResult(state=TransactionState.COMMITTING), AcknowledgeResult(mark_delete=entry)]
    world.database.close()


def test_views_agree_on_the_committed_frontier(sql_world: SqlWorld, topic: Topic) -> None:
    """Last position, backlog and statistics: what nobody can see is nobody's backlog (apache/pulsar#21466)."""
    catalog, ledger = sql_world.catalog, _entry(sql_world, topic, 0).ledger_id
    acknowledge(sql_world, topic.topic_id, _SUB, (ledger, 3))
    writer, gone = begin(sql_world), begin(sql_world)
    produce(sql_world, topic, (gone, 2), (None, 1))
    roll(sql_world, topic.topic_id)
    produce(sql_world, topic, (writer, 4), (None, 1))
    assert _views(sql_world, topic) == ("0:9", 9)
    end(sql_world, gone, commit=False)
    assert _views(sql_world, topic) == ("0:12", 10)
    settle(sql_world, gone, topic)
    assert _views(sql_world, topic) == ("0:12", 10)
    end(sql_world, writer, commit=True)
    assert _views(sql_world, topic) == ("1:4", 15)
    produce(sql_world, topic, (None, 2), markers=[0, 1])
    assert _views(sql_world, topic) == ("1:6", 15)
    assert catalog.topics.summarize_topic(topic).totals.entries == 20


def _views(world: SqlWorld, topic: Topic) -> tuple[str, int]:
    """Last position and backlog, the same whoever is asked."""
    catalog = world.catalog
    state = catalog.cursors.get_cursor(topic.topic_id, _SUB).state
    summary = catalog.topics.summarize_topic(topic)
    last = str(catalog.transactions.read_frontier(topic.topic_id).last)
    assert last == str(summary.totals.last) == str(catalog.ledgers.get_topic_totals(topic.topic_id).last)
    (behind,) = catalog.ledgers.count_backlogs(topic.topic_id, [state])
    assert behind == summary.subscriptions[0].backlog
    return last, behind
