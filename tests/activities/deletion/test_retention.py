"""`retention.roll_idle`: an idle last ledger is closed, so that it can become deletable."""

from collections.abc import Collection, Sequence

import pytest

from activities.deletion.trim_by_retention import RetentionPreparation, RollIdleLedgerInput
from logstore.errors import MissingData, SextonError, UnknownObject
from logstore.log.services import RollPolicy
from logstore.ports.catalog.log import Topic
from logstore.positions import TopicId
from tests.activities.activity_world import World, run
from tests.open_topic_logs import open_topic_logs


class CountingRoller:
    """Rolls nothing and remembers who was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def select_topics_to_roll(self, topic_ids: Collection[TopicId]) -> frozenset[TopicId]:
        return frozenset(topic_ids)

    def roll_if_due(self, topic: Topic) -> bool:
        """Always due."""
        self.asked.append(topic.name)
        return True


class CountingSettler:
    """Settles nothing, has what trouble it is told, and remembers who was asked for."""

    def __init__(self, *troubles: SextonError) -> None:
        self.asked: list[TopicId] = []
        self.troubles = troubles

    def select_topics_to_advance(self, topic_ids: Collection[TopicId]) -> frozenset[TopicId]:
        return frozenset()

    def advance_and_fold_cursors_with_snapshots(self, topic_id: TopicId) -> Sequence[SextonError]:
        self.asked.append(topic_id)
        return self.troubles


def test_roll_of_an_idle_ledger_past_its_age_closes_it_once(world: World) -> None:
    """An idle topic's last ledger becomes deletable without traffic; twice rolls once (apache/pulsar#9136)."""
    world.fill(0)
    with open_topic_logs(world.catalog, world.objects, policy=RollPolicy(max_age_s=0)) as topic_logs:
        retention = RetentionPreparation(topics=world.catalog.topics, roller=topic_logs, settler=CountingSettler())
        request = RollIdleLedgerInput(topic_id=world.topic.topic_id)
        assert [run(retention.roll_idle_ledger, request), run(retention.roll_idle_ledger, request)] == [True, False]
    assert len(world.catalog.ledgers.list_ledgers(world.topic.topic_id)) == 2


def test_roll_of_a_topic_that_is_being_deleted_is_left_out(world: World) -> None:
    """A topic that takes no more ledgers is not rolled, and its trim is not stopped by that (apache/pulsar#26431)."""
    roller, settler = CountingRoller(), CountingSettler()
    retention = RetentionPreparation(topics=world.catalog.topics, roller=roller, settler=settler)
    request = RollIdleLedgerInput(topic_id=world.topic.topic_id)
    assert run(retention.roll_idle_ledger, request)
    world.sql("UPDATE topic SET state='DELETING'")
    assert not run(retention.roll_idle_ledger, request)
    assert roller.asked == [world.topic.name]
    assert settler.asked == [world.topic.topic_id]


def test_roll_goes_on_when_a_cursor_cannot_be_settled(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A lost cursor ledger holds up its own cursor and nothing else (apache/pulsar#18620, #26431)."""
    roller = CountingRoller()
    settler = CountingSettler(MissingData("cursor ledger 7"))
    retention = RetentionPreparation(topics=world.catalog.topics, roller=roller, settler=settler)
    assert run(retention.roll_idle_ledger, RollIdleLedgerInput(topic_id=world.topic.topic_id))
    assert "cursor ledger 7" in caplog.text


def test_roll_of_an_unknown_topic_is_terminal(world: World) -> None:
    """Work for an object that does not exist reaches an end (apache/bookkeeper#3316)."""
    retention = RetentionPreparation(topics=world.catalog.topics, roller=CountingRoller(), settler=CountingSettler())
    with pytest.raises(UnknownObject):
        run(retention.roll_idle_ledger, RollIdleLedgerInput(topic_id=404))
