"""A rebuild behind listings that hide what GET and HEAD find: it looks again, or stops, and loses nothing."""

import pytest

from logstore.deletion.retention import RetentionPolicy
from logstore.errors import CatalogMismatch, InvalidInput, PreconditionFailed, StoreUnavailable
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.identity.bucket_markers import MARKER_KEY
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import SHARDS, ledger_prefix, segment_key, shard_prefix
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId, Position
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.faults.simulated_world import ENDLESS_TIMES
from tests.logstore.catalog.records.adoption import Losing
from tests.logstore.catalog.records.test_adopting import emptied, losing, postgres
from workers.assembly.log_store import LogStore

__all__ = ["emptied", "losing", "postgres"]

_NAME = "persistent://shop/main/orders"
_ALL = "ledgers/"


def _append(log: LogStore, topic: Topic, payload: str) -> None:
    log.topic_logs.append(topic, ProducedEntries(entries=[NewEntry(payload=payload.encode())]))


def _read(log: LogStore, name: str = _NAME) -> dict[Position, str]:
    topic = log.catalog.topics.get_topic(name)
    return {one.position: (one.payload or b"").decode() for one in log.topic_logs.scan(topic)}


def _write(losing: Losing) -> dict[Position, str]:
    """Three closed ledgers, one that was open at the flush, one that nobody knew then, and a schema: ledgers 0 to 5."""
    with losing.process() as log:
        topic = log.catalog.topics.create_topic(_NAME, RetentionPolicy())
        for payload in ("first", "second", "third"):
            _append(log, topic, payload)
            log.topic_logs.roll(topic)
        log.schemas.set(topic, b"schema")
        _append(log, topic, "open at the flush")
        losing.flush()
        _append(log, topic, "behind the flush")
        log.topic_logs.roll(topic)
        _append(log, topic, "in a ledger that no record knows")
        return _read(log)


def _hide(losing: Losing, prefixes: list[str], listings: int) -> None:
    losing.world.store.unlisted = dict.fromkeys(prefixes, listings)


_HIDDEN = {
    "all": [_ALL],
    "every shard": [shard_prefix(shard) for shard in range(SHARDS)],
    "a closed ledger": [ledger_prefix(LedgerId(1))],
    "the first of the list": [ledger_prefix(LedgerId(0))],
    "one segment": [segment_key(LedgerId(1), 0)],
    "the schema": [ledger_prefix(LedgerId(4))],
    "the ledger that was open": [ledger_prefix(LedgerId(3))],
    "the tail of the ledger that was open": [segment_key(LedgerId(3), 1)],
    "a ledger that no record knows": [ledger_prefix(LedgerId(5))],
    "the segments of a ledger that no record knows": [segment_key(LedgerId(5), 0)],
}


@pytest.mark.parametrize("hidden", list(_HIDDEN))
def test_listings_that_hide_objects_once_lose_nothing(losing: Losing, hidden: str) -> None:
    """The objects that they hide are asked for by name, and the shard is listed again."""
    before = _write(losing)
    objects = losing.world.store.keys
    losing.lose()
    _hide(losing, _HIDDEN[hidden], 1)
    report = losing.adopt()
    assert (report.missing_data, report.revived, report.detached) == (0, 0, 0)
    assert losing.world.store.unlisted == {} or hidden == "every shard"
    with losing.process() as log:
        assert _read(log) == before
        assert log.schemas.read(log.catalog.topics.get_topic(_NAME))[1] == b"schema"
        assert log.catalog.deletions.count_undeleted_copies().estimated_inflight == 0
    assert losing.world.store.keys == objects


@pytest.mark.parametrize("hidden", list(_HIDDEN))
def test_listings_that_go_on_hiding_objects_stop_the_rebuild(losing: Losing, hidden: str) -> None:
    """Before anything is settled; once the listings are honest the same rebuild goes on, and nothing was lost."""
    before = _write(losing)
    objects = losing.world.store.keys
    losing.lose()
    _hide(losing, _HIDDEN[hidden], ENDLESS_TIMES)
    with pytest.raises(PreconditionFailed, match="HEAD finds it, LIST does not") as refused:
        losing.adopt()
    assert "empty" not in str(refused.value)
    assert losing.world.store.keys == objects
    losing.world.store.unlisted.clear()
    report = losing.adopt()
    assert (report.missing_data, report.revived, report.detached) == (0, 0, 0)
    with losing.process() as log:
        assert _read(log) == before
        assert log.catalog.deletions.count_undeleted_copies().estimated_inflight == 0


def _lose_objects(losing: Losing, *ledger_ids: int) -> None:
    store = losing.world.store
    store.delete([key for key in store.keys for one in ledger_ids if key.startswith(ledger_prefix(LedgerId(one)))])


def test_too_many_ledgers_without_objects_stop_the_rebuild(losing: Losing) -> None:
    """Before anything is settled; a higher share lets it go on, and it says of which ledgers data is missing."""
    before = _write(losing)
    losing.lose()
    _lose_objects(losing, 0)
    with pytest.raises(PreconditionFailed, match=r"at most 0\.05 .* found 0\.2: 1 of 5; .* --max-absent-share 0\.2$"):
        losing.adopt(max_absent_share=0.05)
    with losing.process() as log:
        topic = log.catalog.topics.get_topic(_NAME)
        assert [one.ledger_id for one in log.catalog.ledgers.list_ledgers(topic.topic_id)] == [0, 1, 2, 3]
    report = losing.adopt(max_absent_share=0.2)
    assert (report.revived, report.missing_ledgers) == (0, [0])
    with losing.process() as log:
        listed = log.catalog.ledgers.list_ledgers(topic.topic_id)
        assert [one.ledger_id for one in listed] == sorted({0, *(at.ledger_id for at in before)})


def test_ledgers_that_ended_before_the_flush_are_expected_to_be_gone(losing: Losing) -> None:
    """A plain delete leaves older versions of the record behind, so the row returns; the list does not name it."""
    _write(losing)
    losing.lose("UPDATE ledger SET place = NULL WHERE ledger_id IN (0, 1)")
    _lose_objects(losing, 0, 1)
    report = losing.adopt(max_absent_share=0.0)
    assert (report.revived_ledgers, report.missing_data) == ([0, 1], 0)


def test_rebuild_that_died_behind_a_topic_weighs_all_absent_ledgers_again(losing: Losing) -> None:
    """Those of the topic that was settled count as before."""
    _write(losing)
    with losing.process() as log:
        other = log.catalog.topics.create_topic("persistent://shop/main/other", RetentionPolicy())
        _append(log, other, "of the other")
        log.topic_logs.roll(other)
    losing.flush()
    losing.lose()
    _lose_objects(losing, 0, 6)
    arm("adoption.conclude.before", "crash")
    with pytest.raises(SimulatedCrash):
        losing.adopt(max_absent_share=0.25)
    disarm_all_and_take_hits()
    with losing.adopter() as adopter:
        with pytest.raises(PreconditionFailed, match=r"found 0\.25: 2 of 8"):
            losing.make_catalog_ready(adopter, max_absent_share=0.24)
        assert losing.make_catalog_ready(adopter, max_absent_share=0.25).missing_data == 2


def test_rebuild_that_died_behind_its_last_step_is_weighed_by_the_same_ledgers(losing: Losing) -> None:
    """The last step removes rows of listed ledgers that nothing names: the share would rise, and refuse it for good."""
    _write(losing)
    losing.flush()
    losing.lose("DELETE FROM schema_version")
    _lose_objects(losing, 0)
    arm("adoption.finish.before", "crash")
    with pytest.raises(SimulatedCrash):
        losing.adopt(max_absent_share=0.17)
    disarm_all_and_take_hits()
    with losing.adopter() as adopter:
        report = losing.make_catalog_ready(adopter, max_absent_share=0.17)
    assert (report.missing_ledgers, report.detached) == ([0], 1)


@pytest.mark.parametrize("share", [-0.01, 1.01, float("nan")])
def test_share_that_is_none_is_refused(losing: Losing, share: float) -> None:
    """0 to 1."""
    with losing.adopter() as adopter, pytest.raises(InvalidInput, match="max-absent-share: expected a number from 0"):
        losing.make_catalog_ready(adopter, max_absent_share=share)


def test_bucket_that_is_not_the_catalogs_any_more_proves_no_absence(losing: Losing) -> None:
    """Its marker is read before the listing, and again before anything counts as absent."""
    _write(losing)
    losing.lose()
    _lose_objects(losing, 0)
    store = losing.world.store

    def swap() -> None:
        store.before_write = lambda: None
        store.delete([MARKER_KEY])

    store.plan(
        Fault(
            operation=StoreOperation.LIST, kind=FaultKind.CALL, matches=ledger_prefix(LedgerId(0)).__eq__, action=swap
        )
    )
    with losing.adopter() as adopter, pytest.raises(CatalogMismatch, match="no marker"):
        adopter.compare_and_stage_shard(0)


def test_upload_that_turns_up_in_a_second_listing_proves_the_first_one_wrong(losing: Losing) -> None:
    """No name was known by which it could be asked for."""
    before = _write(losing)
    losing.lose()
    store = losing.world.store
    found = store.get(segment_key(LedgerId(0), 0))
    assert found
    _lose_objects(losing, 0)
    store.put_if_absent(segment_key(LedgerId(0), 70_000), found.body, metadata=found.metadata)
    _hide(losing, [ledger_prefix(LedgerId(0))], 1)
    report = losing.adopt()
    assert (report.revived, report.missing_ledgers) == (0, [0])
    assert before


def test_segments_that_an_upload_names_are_asked_for_by_name(losing: Losing) -> None:
    """Of two writers one took a number far ahead; the listing lacks it, and shows what was registered behind it."""
    with losing.process() as log:
        topic = log.catalog.topics.create_topic(_NAME, RetentionPolicy())
        _append(log, topic, "flushed")
        losing.flush()
        store = losing.world.store
        for number in range(1, 40):
            store.put_if_absent(segment_key(LedgerId(0), number), b"of others", metadata={})
        _append(log, topic, "far ahead")
        _append(log, topic, "behind it")
        numbers = [one.number for one in log.catalog.ledgers.list_segments(LedgerId(0))]
        assert numbers[1] > 40 - 1
        store.delete([segment_key(LedgerId(0), number) for number in range(1, 40)])
        before = _read(log)
    losing.lose()
    _hide(losing, [segment_key(LedgerId(0), numbers[1])], 1)
    assert losing.adopt().adopted_segments == 2
    with losing.process() as log:
        assert _read(log) == before


def test_segment_of_a_writer_that_lost_a_race_is_asked_for_by_its_number(
    losing: Losing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It drew a number far ahead. The listing hides it, and with it the confirmation that names it."""
    monkeypatch.setattr("logstore.log.services.segment_placement.random.randint", lambda _, highest: highest - 1)
    with losing.process() as log:
        topic = log.catalog.topics.create_topic(_NAME, RetentionPolicy())
        _append(log, topic, "flushed")
        losing.flush()
        _append(log, topic, "behind the flush")
        store, winner = losing.world.store, segment_key(LedgerId(0), 2)
        store.put_if_absent(winner, b"of another writer", metadata={})
        listed = set(store.keys)
        _append(log, topic, "far ahead")
        store.delete([winner])
        before = _read(log)
        assert [segment.number for segment in log.catalog.ledgers.list_segments(LedgerId(0))] == [0, 1, 17]
    losing.lose()
    hidden = sorted(set(store.keys) - listed)
    assert len(hidden) > 1
    _hide(losing, hidden, ENDLESS_TIMES)
    with pytest.raises(PreconditionFailed, match="HEAD finds it, LIST does not"):
        losing.adopt()
    store.unlisted.clear()
    losing.adopt()
    with losing.process() as log:
        assert _read(log) == before


_ANSWERED = {
    "an upload": (StoreOperation.GET, segment_key(LedgerId(3), 1)),
    "an upload of a ledger that no record knows": (StoreOperation.GET, segment_key(LedgerId(5), 0)),
    "the statement of a ledger that no record knows": (StoreOperation.HEAD, ledger_prefix(LedgerId(5))),
}


def _deny(losing: Losing, denied: str, times: int) -> None:
    operation, prefix = _ANSWERED[denied]
    fault = Fault(operation=operation, kind=FaultKind.ABSENT, times=times, matches=lambda key: key.startswith(prefix))
    losing.world.store.plan(fault)


@pytest.mark.parametrize("denied", list(_ANSWERED))
def test_one_answer_that_denies_a_listed_object_loses_nothing(losing: Losing, denied: str) -> None:
    """It is asked for again. Dropped without a word, an append that was answered would be gone."""
    before = _write(losing)
    losing.lose()
    _deny(losing, denied, 1)
    assert losing.adopt().adopted_ledgers == 1
    with losing.process() as log:
        assert _read(log) == before


@pytest.mark.parametrize("denied", list(_ANSWERED))
def test_answers_that_go_on_denying_a_listed_object_are_waited_out(losing: Losing, denied: str) -> None:
    """The look at the shard fails as one that may be repeated, which lists anew; nothing of it was settled."""
    before = _write(losing)
    losing.lose()
    _deny(losing, denied, 2)
    with pytest.raises(StoreUnavailable, match=r"LIST shows it, (GET|HEAD) does not find it"):
        losing.adopt()
    assert losing.adopt().adopted_ledgers == 1
    with losing.process() as log:
        assert _read(log) == before
