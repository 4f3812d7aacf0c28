"""Component ledgers: written whole, stored as every ledger is, and never forgotten half made."""

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logstore.deletion.intents import DeletionState, Outcome
from logstore.errors import CatalogBusy, CorruptData, OutcomeUnknown, StoreUnavailable, UploadTimedOut, UploadUnproven
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.log.ledger_object_keys import meta_key, segment_key
from logstore.log.ledgers import Component, LedgerStatement
from logstore.log.segment_format import digest_footer, sha256_hex
from logstore.log.services.component_ledgers import CreatedLedger, OneEntryLedgerDraft, ParquetLedgerDraft
from logstore.positions import LedgerId
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.component_world import World


@pytest.fixture
def world() -> Iterator[World]:
    """An empty topic."""
    with World() as found:
        yield found
    disarm_all_and_take_hits()


def _draft(world: World, content: bytes = b"content") -> OneEntryLedgerDraft:
    keys = {"schema": world.topic.name}
    return OneEntryLedgerDraft(
        topic_id=world.topic.topic_id,
        component=Component.SCHEMA_STORAGE,
        keys=keys,
        content=content,
        properties={"digest": "d"},
    )


def _publish(world: World, born: CreatedLedger) -> LedgerId:
    made = world.catalog.schemas.publish_schema_version(
        world.topic.topic_id,
        born.ledger_id,
        digest=f"{born.ledger_id}",
        content_bytes=7,
        size_bytes=born.size_bytes,
        sha256=born.sha256,
    )
    assert made
    return made.ledger_id


def _write(world: World, content: bytes = b"content") -> LedgerId:
    return world.contents().write_and_publish(_draft(world, content), lambda born: _publish(world, born))


def test_component_ledger_is_stored_as_every_ledger_is(world: World) -> None:
    """`meta.json` first, then one segment, both saying whose they are; its content comes back."""
    ledger_id = _write(world, b"\x00content\xff")
    owner = world.catalog.statements[ledger_id].owner
    expected = [meta_key(ledger_id, owner), segment_key(ledger_id, 0)]
    assert [key for operation, key in world.objects.calls if operation is StoreOperation.PUT] == expected
    for key in expected:
        found = world.objects.head(key)
        assert found
        assert LedgerStatement.from_metadata(found[1]) == world.catalog.statements[ledger_id]
    assert owner.keys == {"schema": world.topic.name}
    assert world.contents().read(ledger_id) == b"\x00content\xff"


def test_component_ledger_absent_reads_as_none(world: World) -> None:
    """No row, or no object: whoever asked looks at its own row again."""
    assert world.contents().read(LedgerId(404)) is None
    ledger_id = _write(world)
    world.objects.delete([segment_key(ledger_id, 0)])
    assert world.contents().read(ledger_id) is None


def test_component_ledger_of_another_size_is_corrupt(world: World) -> None:
    """What is not what its row says is told, not believed."""
    ledger_id, other = _write(world), _write(world, b"another content, and longer")
    key = segment_key(ledger_id, 0)
    world.objects._held[key] = world.objects._held[segment_key(other, 0)]
    with pytest.raises(CorruptData, match=f"{key}: expected [0-9]+ bytes, found"):
        world.contents().read(ledger_id)


def test_component_ledger_with_a_flipped_bit_is_corrupt(world: World) -> None:
    """Its row has the digest, as that of a ledger of messages."""
    ledger_id = _write(world)
    key = segment_key(ledger_id, 0)
    held = world.objects._held[key]
    (row,) = world.catalog.segment_rows[ledger_id]
    assert row.sha256 == held.metadata["sha256"]
    world.objects._held[key] = replace(held, body=held.body[:40] + bytes([held.body[40] ^ 1]) + held.body[41:])
    with pytest.raises(CorruptData, match="digest"):
        world.contents().read(ledger_id)


@pytest.mark.parametrize("effect", ["component.put_meta", "component.put_segment", "catalog.publish_schema"])
def test_component_ledger_whose_effect_is_reported_failed_is_made_once(world: World, effect: str) -> None:
    """Done but reported as failed: the repetition finds it done."""
    arm(f"{effect}.reported_failed", "fail")
    ledger_id = _write(world)
    assert [one.ledger_id for one in world.listed(Component.SCHEMA_STORAGE)] == [ledger_id]
    assert world.catalog.pending_deletion == []
    assert len(world.catalog.ledger_rows) == 1


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("effect", ["component.put_meta", "component.put_segment", "catalog.publish_schema"])
def test_component_ledger_whose_creator_dies_is_listed_or_newborn(world: World, effect: str, moment: str) -> None:
    """At every crash point a row names what is stored, so that a trim can take it away (apache/pulsar#350)."""
    arm(f"{effect}.{moment}", "crash")
    with pytest.raises(SimulatedCrash):
        _write(world)
    listed = {one.ledger_id for one in world.listed(Component.SCHEMA_STORAGE)}
    assert listed == (
        set(world.catalog.ledger_rows) if (effect, moment) == ("catalog.publish_schema", "after") else set()
    )
    assert len(world.catalog.ledger_rows) == 1


def test_component_ledger_of_an_id_that_storage_holds_already_takes_the_next(world: World) -> None:
    """After the catalog went back, ids may meet another birth: nothing of it is touched."""
    first = LedgerId(world.catalog.next_ledger)
    world.objects.put_if_absent(segment_key(first, 0), b"another birth", metadata={})
    made = _write(world)
    assert made == first + 1
    assert world.contents().read(made) == b"content"
    stored = world.objects.get(segment_key(first, 0))
    assert stored
    assert stored.body == b"another birth"
    for ledger_id in range(made + 1, made + 4):
        world.objects.put_if_absent(segment_key(LedgerId(ledger_id), 0), b"another birth", metadata={})
    with pytest.raises(CatalogBusy, match="storage holds others"):
        _write(world)


def test_component_ledger_store_down_gives_up_and_leaves_a_newborn(world: World) -> None:
    """Nothing is published that is not stored."""
    world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.BEFORE, times=1000))
    with pytest.raises(StoreUnavailable):
        _write(world)
    assert world.listed(Component.SCHEMA_STORAGE) == []
    assert len(world.catalog.ledger_rows) == 1


def test_component_ledger_whose_answer_was_cut_off_once_is_read_again(world: World) -> None:
    """A schema, or a cursor's state, is not lost for that."""
    ledger_id = _write(world)
    world.objects.plan(Fault(operation=StoreOperation.GET, kind=FaultKind.CUT))
    assert world.contents().read(ledger_id) == b"content"


def _is_segment(key: str) -> bool:
    return key.endswith(".parquet")


def _lost(which: int, *, times: int = 1) -> Fault:
    """A PUT that is answered and stores nothing: of `meta.json` (0) or of the segment (1)."""
    return Fault(
        operation=StoreOperation.PUT,
        kind=FaultKind.LOST,
        times=times,
        matches=lambda key: _is_segment(key) is (which == 1),
    )


@pytest.mark.parametrize("which", [0, 1], ids=["meta", "segment"])
def test_component_ledger_whose_upload_was_answered_and_not_stored_is_put_again(world: World, which: int) -> None:
    """It is read back before it is published (apache/pulsar#22839)."""
    world.objects.plan(_lost(which))
    ledger_id = _write(world)
    assert world.contents().read(ledger_id) == b"content"
    assert len(world.objects.keys) == 2


@pytest.mark.parametrize("which", [0, 1], ids=["meta", "segment"])
def test_component_ledger_that_is_never_stored_is_never_published(world: World, which: int) -> None:
    """However often the store says that it has it; what was current stays so."""
    before = _write(world)
    world.objects.plan(_lost(which, times=1000))
    with pytest.raises(UploadUnproven, match="not there"):
        _write(world, b"other")
    assert [one.ledger_id for one in world.listed(Component.SCHEMA_STORAGE)] == [before]


def test_component_ledger_that_is_stored_short_is_never_published(world: World) -> None:
    """Its length is compared, and the digest in its metadata; the content goes to the next id."""

    def cut() -> None:
        (key,) = filter(_is_segment, world.objects.keys)
        held = world.objects._held[key]
        world.objects._held[key] = replace(held, body=held.body[:-1])

    world.objects.plan(Fault(operation=StoreOperation.HEAD, kind=FaultKind.CALL, matches=_is_segment, action=cut))
    made = _write(world)
    assert [one.ledger_id for one in world.listed(Component.SCHEMA_STORAGE)] == [made]
    assert world.contents().read(made) == b"content"


def _delete(world: World) -> None:
    """A trim takes the only newborn for abandoned, and phase two finds nothing of it."""
    for ledger_id in list(world.catalog.ledger_rows):
        world.catalog.detach(world.topic.topic_id, [ledger_id])
    (row,) = world.catalog.intent_rows.values()
    ended = replace(row, state=DeletionState.DELETED, outcome=Outcome.ALREADY_GONE, batch_id="b")
    world.catalog.intent_rows[row.row_id] = ended


def test_component_ledger_whose_uploads_are_never_answered_is_looked_for_again(world: World) -> None:
    """Its creator woke late, put what nobody looks for any more, and asked the catalog nothing (apache/pulsar#350)."""
    world.objects.plan(
        Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=lambda: _delete(world)),
        Fault(operation=StoreOperation.PUT, kind=FaultKind.AFTER, times=1000),
    )
    with pytest.raises(StoreUnavailable):
        _write(world)
    (row,) = world.catalog.intent_rows.values()
    assert row.state is DeletionState.PENDING


def test_component_ledger_that_is_never_published_is_looked_for_again(world: World) -> None:
    """The same where it is the catalog that does not answer."""

    def publish(_: CreatedLedger) -> LedgerId:
        if world.catalog.ledger_rows:
            _delete(world)
        raise OutcomeUnknown("planned")

    with pytest.raises(OutcomeUnknown):
        world.contents().write_and_publish(_draft(world), publish)
    (row,) = world.catalog.intent_rows.values()
    assert row.state is DeletionState.PENDING


@pytest.fixture
def file() -> BinaryIO:
    """A Parquet file of the component's own format."""
    made = io.BytesIO()
    pq.write_table(pa.table({"number": list(range(1_000))}), made)
    return made


def _file_draft(world: World, file: BinaryIO) -> ParquetLedgerDraft:
    component, facts = Component.DELAYED_INDEX, {"first": "1:0"}
    return ParquetLedgerDraft(topic_id=world.topic.topic_id, component=component, keys={}, file=file, facts=facts)


@pytest.mark.parametrize("part_bytes", [100, 1 << 20])
def test_component_ledger_of_a_file_is_stored_as_it_is(world: World, file: BinaryIO, part_bytes: int) -> None:
    """In parts where it is large; its metadata has its owner, the digests of the whole and of the footer, and facts."""
    world.objects.part_bytes = part_bytes
    born = world.contents().write_and_publish(_file_draft(world, file), lambda born: born)
    stored = world.objects.get(segment_key(born.ledger_id, 0))
    assert stored
    file.seek(0)
    assert stored.body == file.read()
    assert (born.size_bytes, born.sha256) == (len(stored.body), sha256_hex(stored.body))
    assert LedgerStatement.from_metadata(stored.metadata) == world.catalog.statements[born.ledger_id]
    vouched = {"sha256": born.sha256, "footer": str(digest_footer(file)), "first": "1:0"}
    assert vouched.items() <= stored.metadata.items()
    assert (StoreOperation.PART in {operation for operation, _ in world.objects.calls}) is (part_bytes == 100)


def test_component_ledger_of_a_file_that_takes_too_long_sends_nothing_more(world: World, file: BinaryIO) -> None:
    """Its creator has a time by which it must have published; what came after it would be looked for by nobody."""
    world.objects.part_bytes = 100
    late = Fault(operation=StoreOperation.PART, kind=FaultKind.CALL, action=lambda: world.catalog.advance(seconds=601))
    world.objects.plan(late)
    with pytest.raises(UploadTimedOut):
        world.contents().write_unlisted(_file_draft(world, file))
    assert len([one for one in world.objects.calls if one[0] is StoreOperation.PART]) == 1
    assert (world.objects.unfinished, world.listed(Component.DELAYED_INDEX)) == (set(), [])


@pytest.mark.parametrize("part_bytes", [100, 1 << 20])
def test_component_ledger_of_a_file_that_is_never_stored_is_never_published(
    world: World, file: BinaryIO, part_bytes: int
) -> None:
    """The index of delayed messages is a file; in parts and whole it is read back."""
    world.objects.part_bytes = part_bytes
    world.objects.plan(_lost(1, times=1000))
    with pytest.raises(UploadUnproven, match="not there"):
        world.contents().write_unlisted(_file_draft(world, file))


def test_component_ledgers_are_stored_before_any_of_them_is_published(world: World, file: BinaryIO) -> None:
    """For a transaction that lists several: they are newborn until then."""
    first, second = (world.contents().write_unlisted(_file_draft(world, file)) for _ in range(2))
    assert first.ledger_id != second.ledger_id
    assert world.listed(Component.DELAYED_INDEX) == []
    assert all(world.objects.get(segment_key(one.ledger_id, 0)) for one in (first, second))
