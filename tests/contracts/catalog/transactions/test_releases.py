"""Cumulative acknowledgements that were read before entries were given back: they would skip those.

Source: apache/pulsar#10431 and apache/pulsar#14371, in which messages of an aborted transaction are never delivered.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event

from logstore.cursors.services.subscriptions import CursorSnapshots, Subscriptions
from logstore.errors import AcknowledgementStale
from logstore.log.services.component_ledgers import ComponentLedgers
from logstore.log.services.group_commit import GroupCommitter
from logstore.ports.catalog.cursors import StoredCursor
from logstore.ports.catalog.log import AcknowledgeResult, AcknowledgeWrite, EndTransactionWrite, Topic
from logstore.positions import Position, TopicId
from logstore.transactions.transaction_ids_and_states import TransactionId
from tests.contracts.catalog.blocking import behind
from tests.contracts.catalog.delayed.steps import delay
from tests.contracts.catalog.steps import at, new_topic, roll
from tests.contracts.catalog.transactions.steps import begin, end, hold, one, produce
from tests.contracts.catalog.worlds import SqlWorld
from tests.fakes.object_store import FakeObjectStore

pytestmark = pytest.mark.postgres
_SUB = "billing"
_A4, _B4 = 4, 9  # the last entries of two runs of five


@pytest.fixture
def topic(sql_world: SqlWorld) -> Topic:
    """Ten entries and a subscription that stands before them."""
    found = new_topic(sql_world)
    produce(sql_world, found, (None, 10))
    sql_world.catalog.cursors.create_subscription(found.topic_id, _SUB, latest=False)
    return found


@pytest.fixture
def subscriptions(sql_world: SqlWorld) -> Iterator[Subscriptions]:
    """As a process uses them."""
    catalog = sql_world.catalog
    contents = ComponentLedgers(
        components=catalog.components, ledgers=catalog.ledgers, objects=FakeObjectStore(), application="sexton"
    )
    ledgers = CursorSnapshots(
        cursors=catalog.cursors, ledgers=catalog.ledgers, component_ledgers=contents, inline_bytes=1_000
    )
    committer = GroupCommitter(catalog.commits.commit_writes)
    yield Subscriptions(
        cursors=catalog.cursors, transactions=catalog.transactions, committer=committer, snapshots=ledgers
    )
    committer.close()


def _entry(world: SqlWorld, topic: Topic, number: int) -> Position:
    return at(world.catalog.ledgers.list_ledgers(topic.topic_id)[0].ledger_id, number)


def _left(world: SqlWorld, topic: Topic, read: StoredCursor) -> list[int]:
    return [number for number in range(10) if not read.state.covers(_entry(world, topic, number))]


def _give_back(world: SqlWorld, txn: TransactionId, how: str) -> None:
    if how == "abort":
        end(world, txn, commit=False)
    else:
        world.sql('UPDATE "transaction" SET deadline_us = 0')
        assert world.catalog.transactions.abort_expired_transactions(txn.tc_id, limit=9) == 1


@pytest.mark.parametrize("how", ["abort", "expiry"])
@pytest.mark.parametrize("again", ["in a transaction", "plain", "plain, as before there were releases"])
def test_what_a_transaction_gave_back_is_not_covered_by_who_read_past_it(
    sql_world: SqlWorld, topic: Topic, subscriptions: Subscriptions, how: str, again: str
) -> None:
    """A consumer that read while it was held has not met it."""
    first, second = begin(sql_world), begin(sql_world, tc_id=1)
    hold(sql_world, topic, _SUB, first, up_to=_entry(sql_world, topic, _A4))
    read = subscriptions.get_for_consumer(topic.topic_id, _SUB)
    assert _left(sql_world, topic, read) == [5, 6, 7, 8, 9]
    _give_back(sql_world, first, how)
    with pytest.raises(AcknowledgementStale, match="expected releases 1, found"):
        subscriptions.acknowledge(
            topic.topic_id,
            _SUB,
            up_to=_entry(sql_world, topic, _B4),
            releases=None if again.endswith("releases") else read.releases,
            txn=second if again.startswith("in") else None,
        )
    read = subscriptions.get_for_consumer(topic.topic_id, _SUB)
    assert _left(sql_world, topic, read) == list(range(10)), "delivered again, and nothing was acknowledged"
    last = _entry(sql_world, topic, _B4)
    answer = subscriptions.acknowledge(topic.topic_id, _SUB, up_to=last, releases=read.releases)
    assert answer.mark_delete == last


def test_single_entries_and_what_is_acknowledged_already_need_no_releases(sql_world: SqlWorld, topic: Topic) -> None:
    """They vouch for nothing before them; a repeated request is answered as the first one."""
    txn = begin(sql_world)
    last = _entry(sql_world, topic, 1)
    done = AcknowledgeWrite(topic_id=topic.topic_id, subscription=_SUB, up_to=last)
    assert isinstance(one(sql_world, done), AcknowledgeResult)
    hold(sql_world, topic, _SUB, txn, _entry(sql_world, topic, 3))
    end(sql_world, txn, commit=False)
    assert one(sql_world, done) == AcknowledgeResult(mark_delete=last)
    single = AcknowledgeWrite(topic_id=topic.topic_id, subscription=_SUB, positions=(_entry(sql_world, topic, 2),))
    assert one(sql_world, single) == AcknowledgeResult(mark_delete=_entry(sql_world, topic, 2))


def test_only_the_abort_of_acknowledgements_counts(sql_world: SqlWorld, topic: Topic) -> None:
    """A commit gives nothing back, nor does the abort of messages, or one of another subscription."""
    sql_world.catalog.cursors.create_subscription(topic.topic_id, "other", latest=False)
    kept, empty, elsewhere, messages = (begin(sql_world) for _ in range(4))
    hold(sql_world, topic, _SUB, kept, _entry(sql_world, topic, 0))
    hold(sql_world, topic, "other", elsewhere, _entry(sql_world, topic, 0))
    produce(sql_world, topic, (messages, 1))
    end(sql_world, kept, commit=True)
    for txn in (empty, elsewhere, messages):
        end(sql_world, txn, commit=False)
    releases = {row.name: row.releases for row in sql_world.catalog.cursors.list_cursors(topic.topic_id)}
    assert releases == {_SUB: 0, "other": 1}
    end(sql_world, elsewhere, commit=False)
    assert sql_world.catalog.cursors.get_cursor(topic.topic_id, "other").releases == 1, "the same end twice is one"


def test_abort_and_acknowledgement_of_one_commit_are_in_that_order(sql_world: SqlWorld, topic: Topic) -> None:
    """A group commit decides first, whoever came first; the acknowledgement was read before."""
    txn = begin(sql_world)
    hold(sql_world, topic, _SUB, txn, up_to=_entry(sql_world, topic, _A4))
    late = AcknowledgeWrite(topic_id=topic.topic_id, subscription=_SUB, up_to=_entry(sql_world, topic, _B4), releases=0)
    refused, _ = sql_world.catalog.commits.commit_writes([late, EndTransactionWrite(txn=txn, commit=False)])
    assert isinstance(refused, AcknowledgementStale)


@pytest.mark.parametrize("aborted_after", [1, 2])
def test_abort_while_a_consumer_looks_is_not_missed(
    sql_world: SqlWorld,
    topic: Topic,
    subscriptions: Subscriptions,
    monkeypatch: pytest.MonkeyPatch,
    aborted_after: int,
) -> None:
    """It meets the entries, or its cumulative acknowledgement is refused."""
    txn, asked = begin(sql_world), list[object]()
    hold(sql_world, topic, _SUB, txn, up_to=_entry(sql_world, topic, _A4))
    transactions = sql_world.catalog.transactions
    real = transactions.find_held_entries

    def held(topic_id: TopicId, name: str) -> object:
        asked.append(real(topic_id, name))
        if len(asked) == aborted_after:
            end(sql_world, txn, commit=False)
        return asked[-1]

    monkeypatch.setattr(transactions, "find_held_entries", held)
    read = subscriptions.get_for_consumer(topic.topic_id, _SUB)
    assert len(asked) == 2
    up_to = _entry(sql_world, topic, _B4)
    late = AcknowledgeWrite(topic_id=topic.topic_id, subscription=_SUB, up_to=up_to, releases=read.releases)
    has_met_all = _left(sql_world, topic, read) == list(range(10))
    assert has_met_all == (aborted_after == 1)
    assert has_met_all or isinstance(one(sql_world, late), AcknowledgementStale)


def test_seek_gives_back_what_an_old_reader_would_skip(
    sql_world: SqlWorld, topic: Topic, subscriptions: Subscriptions
) -> None:
    """An operator asked for it again."""
    read = subscriptions.get_for_consumer(topic.topic_id, _SUB)
    subscriptions.acknowledge(topic.topic_id, _SUB, up_to=_entry(sql_world, topic, _A4), releases=read.releases)
    subscriptions.seek(topic.topic_id, _SUB, _entry(sql_world, topic, 0))
    for releases in (read.releases, None):
        with pytest.raises(AcknowledgementStale):
            subscriptions.acknowledge(topic.topic_id, _SUB, up_to=_entry(sql_world, topic, _B4), releases=releases)
    assert _left(sql_world, topic, subscriptions.get_for_consumer(topic.topic_id, _SUB)) == list(range(10))


def test_acknowledgement_waits_for_an_abort_that_came_first(sql_world: SqlWorld, topic: Topic) -> None:
    """The cursor's row is locked by both; by the next read it is known whether the entries came back."""
    txn = begin(sql_world)
    hold(sql_world, topic, _SUB, txn, _entry(sql_world, topic, 0))
    late = AcknowledgeWrite(topic_id=topic.topic_id, subscription=_SUB, up_to=_entry(sql_world, topic, _B4), releases=0)
    answers = behind(
        sql_world,
        ["UPDATE cursor SET releases = releases + 1", "UPDATE \"transaction\" SET state = 'ABORTED', finished_us = 1"],
        lambda: one(sql_world, late),
    )
    assert isinstance(answers, AcknowledgementStale)


def test_abort_writes_the_counter_and_not_what_the_cursor_has_acknowledged(sql_world: SqlWorld, topic: Topic) -> None:
    """Those entries may be many. A commit of the same group writes its own cursor, and each abort counts once."""
    for name in ("other", "both"):
        sql_world.catalog.cursors.create_subscription(topic.topic_id, name, latest=False)
    first, second, committed = (begin(sql_world) for _ in range(3))
    for number, txn in enumerate((first, second)):
        hold(sql_world, topic, _SUB, txn, _entry(sql_world, topic, number))
        hold(sql_world, topic, "both", txn, _entry(sql_world, topic, number))
    for name in ("other", "both"):
        hold(sql_world, topic, name, committed, _entry(sql_world, topic, 2))
    are_whole: list[bool] = []

    def listen(_connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        if statement.startswith("UPDATE cursor"):
            are_whole.extend("acknowledged" in statement for _ in (parameters if many else [parameters]))

    event.listen(sql_world.database.engine, "before_cursor_execute", listen)
    ends = [EndTransactionWrite(txn=txn, commit=txn == committed) for txn in (first, committed, second)]
    sql_world.catalog.commits.commit_writes(ends)
    event.remove(sql_world.database.engine, "before_cursor_execute", listen)
    assert sorted(are_whole) == [False, False, True, True], "rows where the commit acknowledged, and counters"
    cursors = {row.name: row for row in sql_world.catalog.cursors.list_cursors(topic.topic_id)}
    assert {name: cursor.releases for name, cursor in cursors.items()} == {_SUB: 2, "other": 0, "both": 2}
    assert [name for name, cursor in cursors.items() if cursor.state.covers(_entry(sql_world, topic, 2))] == [
        "both",
        "other",
    ]


@pytest.mark.parametrize("releases", [None, 0])
@pytest.mark.parametrize("is_held", [False, True], ids=["plain", "in a transaction"])
def test_delayed_messages_are_covered_only_with_the_releases_of_a_read(
    sql_world: SqlWorld, topic: Topic, subscriptions: Subscriptions, releases: int | None, is_held: bool
) -> None:
    """A script that knows no releases may never have been handed them: they come when their time has come."""
    topic_id, ledger_id = topic.topic_id, _entry(sql_world, topic, 0).ledger_id
    assert delay(sql_world, topic_id, ledger_id, 1, entries=3) == at(ledger_id, 12)
    txn = begin(sql_world) if is_held else None

    def acknowledge(last: int) -> object:
        return subscriptions.acknowledge(topic_id, _SUB, up_to=at(ledger_id, last), releases=releases, txn=txn)

    acknowledge(9)  # up to there no message has a delivery time
    if releases is None:
        before = sql_world.catalog.cursors.get_cursor(topic_id, _SUB)
        with pytest.raises(AcknowledgementStale, match=f"a segment with delayed messages at {ledger_id}:10"):
            acknowledge(10)
        assert sql_world.catalog.cursors.get_cursor(topic_id, _SUB) == before
    else:
        acknowledge(12)


def test_delayed_messages_that_are_acknowledged_singly_need_no_releases(sql_world: SqlWorld, topic: Topic) -> None:
    """Nor do those of another topic, or behind the position; a segment that no row counts may hold some."""
    other = new_topic(sql_world, "persistent://a/b/other")
    produce(sql_world, other, (None, 1))
    delay(sql_world, other.topic_id, _entry(sql_world, other, 0).ledger_id, 3)
    ledger_id = _entry(sql_world, topic, 0).ledger_id
    delay(sql_world, topic.topic_id, ledger_id, 2, entries=2)
    produce(sql_world, topic, (None, 3))

    def acknowledge(*positions: int, up_to: int | None = None) -> object:
        return one(
            sql_world,
            AcknowledgeWrite(
                topic_id=topic.topic_id,
                subscription=_SUB,
                positions=tuple(at(ledger_id, number) for number in positions),
                up_to=None if up_to is None else at(ledger_id, up_to),
            ),
        )

    acknowledge(10)
    assert isinstance(acknowledge(up_to=14), AcknowledgementStale)
    acknowledge(11)
    assert acknowledge(up_to=13) == AcknowledgeResult(mark_delete=at(ledger_id, 13))


def test_trimmed_segments_hold_nothing_that_was_not_delivered(sql_world: SqlWorld, topic: Topic) -> None:
    """Their ledger is in no list any more."""
    first = _entry(sql_world, topic, 0).ledger_id
    delay(sql_world, topic.topic_id, first, 2)
    second = roll(sql_world, topic.topic_id)
    produce(sql_world, topic, (None, 3))
    up_to = AcknowledgeWrite(topic_id=topic.topic_id, subscription=_SUB, up_to=at(second, 2))
    assert isinstance(one(sql_world, up_to), AcknowledgementStale)
    sql_world.detach(topic.topic_id, [first])
    assert one(sql_world, up_to) == AcknowledgeResult(mark_delete=at(second, 2))
