"""Appending when nothing goes wrong: places, duplicates, refusals, what storage says."""

import pytest

from logstore.errors import InvalidInput, PreconditionFailed, UnknownObject
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import meta_key, segment_key
from logstore.log.ledgers import LedgerStatement
from logstore.log.services import AppendResult, TopicLogs
from logstore.ports.catalog.log import TopicState
from logstore.positions import LedgerId, Position
from tests.logstore.builders import OWNER
from tests.logstore.log.world import World, numbered, plain


def _at(entry_id: int, ledger_id: int = 0) -> Position:
    return Position(LedgerId(ledger_id), entry_id)


def test_append_first_creates_the_first_ledger(world: World) -> None:
    """A topic starts without ledgers; ledger 0 is an ordinary one (apache/bookkeeper#950)."""
    found = world.process().append(world.topic, plain(b"a", b"b"))
    assert found == AppendResult(count=2, first=_at(0), last=_at(1), duplicates=0)
    assert world.payloads() == [b"a", b"b"]


def test_append_goes_behind_what_any_process_appended(world: World) -> None:
    """Two processes, each with an old idea of the ledger's end, never overlap."""
    one, two = world.process(), world.process()
    places = [process.append(world.topic, plain(b"%d" % at)).first for at, process in enumerate([one, two] * 3)]
    assert places == [_at(entry) for entry in range(6)]
    assert world.payloads() == [b"%d" % at for at in range(6)]


def test_append_objects_state_whose_they_are(world: World) -> None:
    """Every object repeats the ledger's statement, so half a ledger can still be verified (apache/pulsar#1302)."""
    world.process().append(world.topic, plain(b"a"))
    meta = world.objects.get(meta_key(LedgerId(0), OWNER))
    segment = world.objects.get(segment_key(LedgerId(0), 0))
    assert meta is not None
    assert segment is not None
    stated = LedgerStatement.from_metadata(meta.metadata)
    assert LedgerStatement.from_metadata(segment.metadata) == stated
    assert stated.to_json() == meta.body
    assert (stated.owner, stated.ledger_id) == (OWNER, 0)


def test_append_keeps_every_field_of_an_entry(world: World) -> None:
    """What was produced is what is read, with the appender's time."""
    entry = NewEntry(payload=b"\x00", key="k", deliver_at_ms=5, sequence_id=0, properties={"a": "b"})
    world.process().append(world.topic, ProducedEntries(entries=[entry], producer="p"))
    (found,) = world.entries()
    assert (found.payload, found.key, found.deliver_at_ms, found.properties) == (b"\x00", "k", 5, {"a": "b"})
    assert (found.producer, found.sequence_id, found.publish_ms) == ("p", 0, world.catalog.now_us // 1000)


def test_append_tells_how_many_entries_of_its_segment_have_a_delivery_time(world: World) -> None:
    """Of those that are stored: a duplicate is not one of them; a time that has passed counts as any other."""
    process = world.process()
    for times in ((None, None), (None, 5, None, 7), (None, 5, None, 7, 9)):
        entries = [NewEntry(payload=b"x", deliver_at_ms=one, sequence_id=at) for at, one in enumerate(times)]
        process.append(world.topic, ProducedEntries(entries=entries, producer="p"))
    assert [(row.entries, row.delayed) for row in world.catalog.segment_rows[LedgerId(0)]] == [(2, 0), (2, 1), (1, 1)]


def test_append_at_or_behind_the_registered_sequence_is_a_duplicate(world: World) -> None:
    """Acknowledged and not stored again. Source: Pulsar's message deduplication."""
    process = world.process()
    process.append(world.topic, numbered([0, 1, 5]))
    assert process.append(world.topic, numbered([3, 5])) == AppendResult(count=0, first=None, last=None, duplicates=2)
    assert process.append(world.topic, numbered([4, 5, 6, 9])) == AppendResult(
        count=2, first=_at(3), last=_at(4), duplicates=2
    )
    assert world.payloads() == [b"p0", b"p1", b"p5", b"p6", b"p9"]


def test_append_duplicates_alone_upload_nothing(world: World) -> None:
    """A repeated request costs one read."""
    process = world.process()
    process.append(world.topic, numbered([0]))
    before = world.objects.keys
    process.append(world.topic, numbered([0]))
    assert world.objects.keys == before


def test_append_another_process_knows_duplicates_too(world: World) -> None:
    """Sequence ids live in the catalog, and a process that remembers an old one is corrected."""
    one, two = world.process(), world.process()
    one.append(world.topic, numbered([0]))
    two.append(world.topic, numbered([1]))
    assert one.append(world.topic, numbered([0, 1])).duplicates == 2
    found = one.append(world.topic, numbered([1, 2]))
    assert (found.count, found.duplicates, found.first) == (1, 1, _at(2))
    assert world.payloads() == [b"p0", b"p1", b"p2"]


def test_append_producers_do_not_share_sequences(world: World) -> None:
    """A sequence belongs to one producer of one topic."""
    process = world.process()
    process.append(world.topic, numbered([7], producer="a"))
    assert process.append(world.topic, numbered([7], producer="b")).count == 1
    assert process.append(world.topic, plain(b"x")).count == 1


def test_append_entries_without_sequence_are_never_duplicates(world: World) -> None:
    """A named producer that numbers nothing is not deduplicated, nor what it leaves unnumbered."""
    process = world.process()
    mixed = ProducedEntries(entries=[NewEntry(payload=b"n", sequence_id=1), NewEntry(payload=b"u")], producer="p")
    process.append(world.topic, mixed)
    assert process.append(world.topic, mixed) == AppendResult(count=1, first=_at(2), last=_at(2), duplicates=1)
    assert world.payloads() == [b"n", b"u", b"u"]


_TEXT_THAT_UTF8_CANNOT_HOLD = "\ud800"


@pytest.mark.parametrize(
    ("produced", "field"),
    [
        (ProducedEntries(entries=[]), "entries"),
        (ProducedEntries(entries=[NewEntry(payload=b"", sequence_id=1)]), "entry 0: sequence_id"),
        (numbered([1, 1]), "entry 1: sequence_id"),
        (numbered([2, 1]), "entry 1: sequence_id"),
        (numbered([-1]), "entry 0: sequence_id"),
        (numbered([2**63]), "entry 0: sequence_id"),
        (ProducedEntries(entries=[NewEntry(payload=b"", deliver_at_ms=2**63)]), "entries"),
        (ProducedEntries(entries=[NewEntry(payload=b"", key=_TEXT_THAT_UTF8_CANNOT_HOLD)]), "entries"),
        (ProducedEntries(entries=[NewEntry(payload=b"", properties={"a": 1})]), "entries"),  # type: ignore[dict-item]
    ],
)
def test_append_of_bad_input_is_refused_before_anything_is_written(
    world: World, produced: ProducedEntries, field: str
) -> None:
    """Neither object nor row, not even a ledger."""
    with pytest.raises(InvalidInput) as refused:
        world.process().append(world.topic, produced)
    assert refused.value.field == field
    assert world.objects.keys == []
    assert world.catalog.ledger_rows == {}


def _append(process: TopicLogs, world: World) -> None:
    process.append(world.topic, plain(b"x"))


@pytest.mark.parametrize("warm", [True, False])
def test_append_to_a_topic_that_is_being_deleted_is_refused(world: World, warm: bool) -> None:
    """DELETING only lets work end, whether or not this process knows its ledger already."""
    process = world.process()
    if warm:
        _append(process, world)
    world.catalog.set_state(world.topic.topic_id, TopicState.DELETING)
    with pytest.raises(PreconditionFailed, match="DELETING"):
        _append(process, world)
    assert len(world.payloads()) == warm


def test_append_to_a_topic_that_does_not_exist_is_refused(world: World) -> None:
    """A name created again has another id; the old one takes nothing."""
    del world.catalog.topic_rows[world.topic.topic_id]
    with pytest.raises(UnknownObject):
        _append(world.process(), world)
