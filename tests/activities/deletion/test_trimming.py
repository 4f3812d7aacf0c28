"""Trimming a page of topics: each alone, into one batch that stays held."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from activities.deletion.trim_by_retention import (
    CountBatchInput,
    NextTopicPagesInput,
    NextTopicPagesResult,
    RetentionPreparation,
    TopicIdRange,
    TrimAllTopicsActivities,
    TrimPageInput,
)
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import CatalogBusy, CorruptData, SextonError, StoreUnavailable
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId, TopicId
from tests.activities.activity_world import World, run

BATCH = "trim-1"


class Idle(RetentionPreparation):
    """Prepares nothing, and fails as told."""

    def __init__(self, *errors: SextonError) -> None:
        self.errors = list(errors)
        self.asked: list[TopicId] = []
        self.nothing: set[int] = set()  # to prepare in these

    def select_topics_to_prepare(self, topics: Sequence[Topic]) -> list[Topic]:
        return [topic for topic in topics if topic.topic_id not in self.nothing]

    def roll_and_advance_cursors(self, topic: Topic) -> bool:
        self.asked.append(topic.topic_id)
        if self.errors:
            raise self.errors.pop(0)
        return False


def trimming(world: World, *errors: SextonError) -> tuple[TrimAllTopicsActivities, Idle]:
    """The activities, and what prepares topics."""
    idle, catalog = Idle(*errors), world.catalog
    made = TrimAllTopicsActivities(catalog=catalog, retention=idle)
    return made, idle


def filled(world: World, topics: int) -> list[list[LedgerId]]:
    """One consumed ledger and an open one in each of so many topics."""
    names = [f"persistent://tenant/namespace/more-{number}" for number in range(1, topics)]
    made = [replace(world, topic=world.catalog.topics.create_topic(name, RetentionPolicy())) for name in names]
    return [one.fill(1) for one in (world, *made)]


def request(first: int, last: int) -> TrimPageInput:
    """A page of topics."""
    return TrimPageInput(
        page=TopicIdRange(first=first, last=last, topics=last - first + 1),
        batch_id=BATCH,
        batch_workflow_id=f"delete-ledgers/{BATCH}",
        actor="tests",
        reason="a test",
    )


def test_next_pages_cuts_topics_by_id(world: World) -> None:
    """So many topics a page, so many pages; the last one may be short."""
    filled(world, 5)
    activities, _ = trimming(world)
    found: NextTopicPagesResult = run(activities.list_next_topic_pages, NextTopicPagesInput(after=0, topics=2, limit=2))
    assert found.pages == [TopicIdRange(first=1, last=2, topics=2), TopicIdRange(first=3, last=4, topics=2)]
    assert run(activities.list_next_topic_pages, NextTopicPagesInput(after=4, topics=2, limit=2)).pages == [
        TopicIdRange(first=5, last=5, topics=1)
    ]
    assert run(activities.list_next_topic_pages, NextTopicPagesInput(after=5, topics=2, limit=2)).pages == []


def test_trim_page_touches_no_topic_beyond_it(world: World) -> None:
    """Also where one of the page has gone: its place is not taken by the next page's first."""
    filled(world, 3)
    activities, idle = trimming(world)
    world.sql("DELETE FROM topic WHERE topic_id = 2")
    done = run(activities.trim_page, request(1, 2))
    assert (done.topics, done.ledgers, done.intents, done.failed) == (1, 1, 1, 0)
    assert idle.asked == [1]


def test_trim_page_repeated_tells_the_same(world: World) -> None:
    """Whether an attempt was heard or not, each topic counts once (temporalio/sdk-python#1048)."""
    filled(world, 3)
    activities, _ = trimming(world)
    first = run(activities.trim_page, request(1, 3))
    assert (first.topics, first.ledgers, first.intents) == (3, 3, 3)
    assert run(activities.trim_page, request(1, 3)).troubles == []
    counted = run(activities.count_batch, CountBatchInput(batch_id=BATCH))
    assert (counted.ledgers, counted.intents, counted.catalog_epoch) == (3, 3, 1)


def test_trim_page_holds_the_batch_of_pages_before_it(world: World) -> None:
    """However many topics have nothing to give: what was detached first is not taken for stalled."""
    filled(world, 2)
    activities, _ = trimming(world)
    run(activities.trim_page, request(1, 1))
    world.sql("UPDATE run SET claim_until_us = 0")
    world.sql("UPDATE cursor SET mark_ledger = 0, mark_entry = -1 WHERE topic_id = 2")
    assert run(activities.trim_page, request(2, 2)).ledgers == 0
    assert world.detach(batch_id="another").intents == 0


def test_trim_page_prepares_only_what_there_is_something_to_prepare_for(world: World) -> None:
    """All are trimmed; most are asked nothing before."""
    filled(world, 3)
    activities, idle = trimming(world)
    idle.nothing = {1, 3}
    assert run(activities.trim_page, request(1, 3)).ledgers == 3
    assert idle.asked == [2]


def test_trim_page_goes_on_without_rolls_once_the_store_is_away(world: World) -> None:
    """One that cannot be prepared is told; after a store that gives no answer, no other is made to wait for it."""
    filled(world, 3)
    activities, idle = trimming(world, CorruptData("planned"), StoreUnavailable("planned"))
    done = run(activities.trim_page, request(1, 3))
    assert (done.ledgers, done.failed) == (3, 0)
    assert idle.asked == [1, 2]
    assert ["not rolled: CorruptData" in done.troubles[0], "nor any behind it" in done.troubles[1]] == [True, True]


def test_trim_page_tells_a_sample_of_many_troubles(world: World) -> None:
    """A payload does not grow with what goes wrong."""
    filled(world, 12)
    activities, _ = trimming(world, *(CatalogBusy("x" * 5_000) for _ in range(12)))
    done = run(activities.trim_page, request(1, 12))
    assert (len(done.troubles), done.ledgers) == (5, 12)
    assert max(map(len, done.troubles)) == 300


def test_trim_page_prepares_as_a_single_trim_does(world: World) -> None:
    """Cursors are settled and the idle last ledger is rolled; a topic that is being deleted is left alone."""

    class Roller:
        rolled = 0

        def select_topics_to_roll(self, topic_ids: Collection[TopicId]) -> frozenset[TopicId]:
            return frozenset(topic_ids)

        def select_topics_to_advance(self, topic_ids: Collection[TopicId]) -> frozenset[TopicId]:
            return frozenset()

        def roll_if_due(self, topic: Topic) -> bool:
            self.rolled += 1
            return True

        def advance_and_fold_cursors_with_snapshots(self, topic_id: TopicId) -> list[SextonError]:
            return []

    roller = Roller()
    retention = RetentionPreparation(topics=world.catalog.topics, roller=roller, settler=roller)
    assert retention.roll_and_advance_cursors(world.topic)
    world.sql("UPDATE topic SET state = 'DELETING'")
    assert not retention.roll_and_advance_cursors(world.catalog.topics.get_topic_by_id(world.topic.topic_id))
    assert roller.rolled == 1


@pytest.mark.parametrize("error", [StoreUnavailable("planned"), CatalogBusy("planned")])
def test_trim_page_tells_an_outage_from_a_topics_own_trouble(
    world: World, error: SextonError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog is away for all topics alike: then the page is tried again, and none is skipped."""
    filled(world, 2)
    activities, _ = trimming(world)

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(world.catalog.phase_one, "detach_by_retention_into_batch", refuse)
    if isinstance(error, StoreUnavailable):
        with pytest.raises(StoreUnavailable):
            run(activities.trim_page, request(1, 2))
    else:
        assert run(activities.trim_page, request(1, 2)).failed == 2
