"""Segments that are not what was stored: a bit that flipped, and the bytes of another object."""

import hashlib
import io
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from logstore.errors import CorruptData, SextonError
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import segment_key
from logstore.log.ledgers import CopyKind
from logstore.log.segment_format import CHUNKS_FIELD, COLUMNS, decode_segment, digest_footer
from logstore.log.services.segment_reader import read_columns
from logstore.ports.catalog.offload import OffloadStartOutcome
from logstore.ports.object_storage import ObjectInfo
from logstore.positions import LedgerId
from logstore.records.services import upload_reader
from logstore.records.services.upload_reader import read_upload_unless_foreign
from logstore.transactions.transaction_buffer import MarkerVerb, TransactionMarker, markers_to_entries
from logstore.transactions.transaction_ids_and_states import TransactionId
from tests.fakes.object_store import FakeObjectStore, Fault, FaultKind, StoreOperation, _HeldObject
from tests.logstore.log.world import World, plain
from tests.logstore.offload.offloading import Offloading

_LARGE = 100_000
"""Bytes of a payload with which a segment is read by ranges where payloads are not asked for."""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Offloading]:
    """A topic with a primary and a tiered bucket."""
    made = Offloading(folder=tmp_path)
    with made.world:
        yield made


def put_behind(objects: FakeObjectStore, key: str, change: Callable[[_HeldObject], _HeldObject]) -> None:
    """Let an object be another one, behind the port's back."""
    objects._held[key] = change(objects._held[key])


def flip(objects: FakeObjectStore, key: str, bit: int) -> None:
    """Turn one bit around."""

    def flipped(held: _HeldObject) -> _HeldObject:
        body = bytearray(held.body)
        body[bit // 8] ^= 1 << bit % 8
        return replace(held, body=bytes(body))

    put_behind(objects, key, flipped)


def large(world: World, *, name: str = "key") -> str:
    """A ledger with one segment, and its key; segments of names of one length have one length."""
    entries = [NewEntry(payload=random.Random(f"{name}{at}").randbytes(_LARGE), key=f"{name}-{at}") for at in range(4)]
    world.process().append(world.topic, ProducedEntries(entries=entries))
    return world.segments()[-1]


def test_segment_is_stored_with_its_digest_in_its_row_and_in_its_metadata(world: World) -> None:
    """Both say what the object is, so that either may be asked."""
    world.process().append(world.topic, plain(b"a", b"b"))
    (key,) = world.segments()
    (row,) = world.catalog.segment_rows[LedgerId(0)]
    stored = world.objects.get(key)
    assert stored is not None
    assert row.sha256 == stored.metadata["sha256"] == hashlib.sha256(stored.body).hexdigest()


def test_every_flipped_bit_of_a_segment_is_seen(world: World) -> None:
    """Without a digest, 1,187 of 1,500 were read as if nothing had happened."""
    process = world.process()
    process.append(world.topic, plain(b"first", b"second", b"third"))
    (key,) = world.segments()
    bits = len(world.objects._held[key].body) * 8
    for bit in random.Random(3).sample(range(bits), 1_500):
        flip(world.objects, key, bit)
        with pytest.raises(CorruptData, match="digest"):
            world.payloads(process)
        flip(world.objects, key, bit)
    assert world.payloads(process) == [b"first", b"second", b"third"]


def test_a_flipped_bit_of_the_columns_that_are_read_by_ranges_is_seen(world: World) -> None:
    """Each page has a checksum: who reads two columns of a large segment never gets a wrong value."""
    process, key = world.process(), large(world)

    def read() -> list[tuple[int, str | None]]:
        found = process.scan(world.topic, columns=["publish_ms", "key"])
        return [(entry.publish_ms, entry.key) for entry in found]

    right, seen = read(), 0
    bits = len(world.objects._held[key].body) * 8
    ends = [*range(8 * 200), *range(bits - 8 * 3_000, bits)]  # columns before the payload, and the footer
    for bit in random.Random(5).sample(ends, 600):
        flip(world.objects, key, bit)
        try:
            assert read() == right
        except CorruptData:
            seen += 1
        flip(world.objects, key, bit)
    assert seen > 50
    assert read() == right


@pytest.mark.parametrize(("columns", "headers"), [("payload", True), ("payload", False), ("key", False)])
def test_the_bytes_of_another_object_of_equal_length_are_not_ours(world: World, columns: str, headers: bool) -> None:
    """A store that answers with another segment is not believed, by whole or by ranges, which its metadata betrays."""
    own = large(world, name="key")
    with World() as elsewhere:
        other = elsewhere.objects._held[large(elsewhere, name="kex")]
    ours = world.objects._held[own]
    assert len(ours.body) == len(other.body)
    put_behind(world.objects, own, lambda held: replace(held, body=other.body) if headers else other)
    with pytest.raises(CorruptData, match=r"sha256|digest"):
        list(world.process().scan(world.topic, columns=[columns]))


_DIGESTED = [name for name in COLUMNS if name != "payload"]


def rich(world: World, seed: int) -> str:
    """A segment with a value in most columns, and its key; the columns of seeds 3 and 4 have equal lengths."""
    entries = [
        NewEntry(
            payload=random.Random(f"{seed}{at}").randbytes(_LARGE),
            key=f"key-{seed}-{at}",
            deliver_at_ms=2_000_000_000_000 + 16 * seed + at,
            sequence_id=16 * seed + at,
            properties={f"name-{seed}": f"value-{seed}-{at}"},
        )
        for at in range(4)
    ]
    world.process().append(world.topic, ProducedEntries(entries=entries, producer=f"producer-{seed}"))
    return world.segments()[-1]


def answer_columns_from(objects: FakeObjectStore, own: str, other: bytes) -> None:
    """Let the store answer ranges before the footer with bytes of another object, and right headers."""
    real, footer_bytes = objects.get_range, digest_footer(io.BytesIO(other)).size_bytes

    def get_range(
        key: str, start: int, length: int, *, expected_metadata: Mapping[str, str] | None = None
    ) -> bytes | None:
        found = real(key, start, length, expected_metadata=expected_metadata)
        mixed_up = key == own and start + length <= len(other) - footer_bytes
        return other[start : start + length] if mixed_up else found

    objects.get_range = get_range  # type: ignore[method-assign]


@pytest.mark.parametrize("column", ["deliver_at_ms", "producer", "sequence_id", "key", "properties"])
def test_column_of_another_segment_of_equal_layout_is_not_ours(world: World, column: str) -> None:
    """The checksums of its pages came with it, and are right: the digest of the chunk is not."""
    own = rich(world, 3)
    with World() as elsewhere:
        other = elsewhere.objects._held[rich(elsewhere, 4)].body
    assert len(world.objects._held[own].body) == len(other)
    answer_columns_from(world.objects, own, other)
    with pytest.raises(CorruptData, match=f"{own}: expected column {column} at byte"):
        list(world.process().scan(world.topic, columns=[column]))


def _listed(objects: FakeObjectStore, key: str) -> ObjectInfo:
    (found,) = objects.list(key)
    return found


def test_column_of_another_segment_of_equal_layout_is_not_adopted(world: World) -> None:
    """A rebuild reads segments without their rows, and compares as much."""
    own = rich(world, 3)
    with World() as elsewhere:
        other = elsewhere.objects._held[rich(elsewhere, 4)].body
    listed = _listed(world.objects, own)
    assert read_upload_unless_foreign(world.objects, LedgerId(0), 0, listed)
    answer_columns_from(world.objects, own, other)
    with pytest.raises(CorruptData, match=f"{own}: expected column deliver_at_ms at byte"):
        read_upload_unless_foreign(world.objects, LedgerId(0), 0, listed)


def test_large_segment_with_markers_is_adopted_as_a_small_one_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads of markers are read from the whole object, which is compared with its digest."""
    marker = TransactionMarker(txn=TransactionId(1, 2), verb=MarkerVerb.COMMIT, epoch=1)
    world.process().append(world.topic, markers_to_entries([marker]))
    key = world.segments()[-1]
    listed = _listed(world.objects, key)
    small = read_upload_unless_foreign(world.objects, LedgerId(0), 0, listed)
    assert small
    assert len(small.markers) == 1
    monkeypatch.setattr(upload_reader, "MAX_WHOLE_READ_BYTES", 0)
    assert read_upload_unless_foreign(world.objects, LedgerId(0), 0, listed) == small


def test_columns_side_by_side_are_fetched_by_one_request(world: World) -> None:
    """Chunks that are compared cost no request more, but fewer."""
    rich(world, 1)
    begun = len(world.objects.calls)
    (first, *_) = world.process().scan(world.topic, columns=["deliver_at_ms", "producer", "sequence_id"])
    assert (first.producer, first.sequence_id) == ("producer-1", 16)
    requests = [operation for operation, _ in world.objects.calls[begun:]]
    assert requests == [StoreOperation.HEAD, StoreOperation.GET_RANGE, StoreOperation.GET_RANGE]


@pytest.mark.parametrize("column", _DIGESTED)
def test_large_segment_from_before_digests_of_chunks_is_read(world: World, column: str) -> None:
    """Its metadata has none: checksums of pages and the stated digest are all that protects it."""
    key = rich(world, 1)
    read = partial(decode_segment, io.BytesIO(world.objects._held[key].body), columns=[column], name=key)
    (row,) = world.catalog.segment_rows[LedgerId(0)]
    assert read_columns(world.objects, row, [column]) == read()
    put_behind(world.objects, key, lambda held: replace(held, metadata=without(held.metadata, CHUNKS_FIELD)))
    assert read_columns(world.objects, row, [column]) == read()


def without(metadata: Mapping[str, str], name: str) -> dict[str, str]:
    """Metadata that lacks one entry."""
    return {known: value for known, value in metadata.items() if known != name}


@pytest.mark.parametrize("change", [lambda told: told[:-1], lambda told: told[16:], lambda _: "?" * 160])
def test_digests_of_chunks_that_cannot_be_read_are_corrupt(world: World, change: Callable[[str], str]) -> None:
    """They were stored with the segment: where they are damaged, nothing vouches for its columns."""
    key = rich(world, 1)
    told = change(world.objects._held[key].metadata[CHUNKS_FIELD])
    put_behind(world.objects, key, lambda held: replace(held, metadata=held.metadata | {CHUNKS_FIELD: told}))
    with pytest.raises(CorruptData, match="expected digests of 10 column chunks"):
        list(world.process().scan(world.topic, columns=["key"]))


def test_small_segment_has_no_digests_of_chunks(world: World) -> None:
    """It is always read as a whole, so that its appends pay for none."""
    world.process().append(world.topic, plain(b"a"))
    assert CHUNKS_FIELD not in world.objects._held[world.segments()[-1]].metadata


def test_segment_whose_metadata_has_another_digest_than_its_row_is_corrupt(world: World) -> None:
    """Row and object vouch for each other: where one was changed, neither is believed."""
    world.process().append(world.topic, plain(b"a"))
    (key,) = world.segments()
    put_behind(world.objects, key, lambda held: replace(held, metadata=held.metadata | {"sha256": "0" * 64}))
    with pytest.raises(CorruptData, match="in its metadata"):
        world.payloads()


def test_corrupt_segment_is_named_with_topic_ledger_and_entries(world: World) -> None:
    """Who reads it is told where to read what to do."""
    world.process().append(world.topic, plain(b"a"))
    world.process().append(world.topic, plain(b"b", b"c"))
    key = world.segments()[1]
    flip(world.objects, key, 700)
    with pytest.raises(CorruptData) as corrupt:
        world.payloads()
    said = str(corrupt.value)
    what = f"topic {world.topic.name}: ledger 0, segment 1 (entries 1 to 2) is corrupt in every copy"
    assert said.startswith(f"{what}: {key}: expected digest ")
    assert said.endswith("Run `sexton ledger explain 0`: it says what to do")


@pytest.mark.parametrize(
    ("columns", "operation"), [(["payload"], StoreOperation.GET), (["key"], StoreOperation.GET_RANGE)]
)
def test_answer_that_was_cut_off_once_is_asked_for_again(
    world: World, columns: list[str], operation: StoreOperation
) -> None:
    """A gateway that chopped one answer made a segment corrupt that was whole, and ended jobs for good."""
    rich(world, 1)
    right = list(world.process().scan(world.topic, columns=columns))
    cut = Fault(operation=operation, kind=FaultKind.CUT)
    world.objects.plan(cut)
    assert list(world.process().scan(world.topic, columns=columns)) == right
    assert cut.times == 0


def test_segment_from_before_digests_is_read_by_its_length_alone(world: World) -> None:
    """A row without a digest, and an object without one: an earlier build stored them."""
    world.process().append(world.topic, plain(b"a"))
    (key,) = world.segments()
    rows = world.catalog.segment_rows[LedgerId(0)]
    rows[0] = replace(rows[0], sha256=None)
    put_behind(world.objects, key, lambda held: replace(held, metadata={}))
    assert world.payloads() == [b"a"]


def test_read_of_a_flipped_bit_comes_from_the_tiered_copy(scene: Offloading) -> None:
    """The reader goes on with the copy that is whole; where there is none it says so, and invents nothing."""
    first, second, _ = scene.fill(3)
    scene.offload(first, "u-0")
    right = scene.world.payloads(scene.process())
    flip(scene.world.objects, segment_key(first, 1), 700)
    assert scene.world.payloads(scene.process()) == right
    flip(scene.world.objects, segment_key(second, 0), 700)
    with pytest.raises(CorruptData, match=segment_key(second, 0)):
        scene.world.payloads(scene.process())


def test_offload_of_a_flipped_bit_is_refused_and_keeps_the_primary(scene: Offloading) -> None:
    """Else `--delete-primary` would make it permanent."""
    (ledger, _) = scene.fill(2)
    flip(scene.world.objects, segment_key(ledger, 0), 700)
    with pytest.raises(CorruptData, match="digest"):
        scene.upload(ledger)
    assert scene.world.catalog.ledgers.list_ledgers(scene.world.topic.topic_id)[0].copies == (CopyKind.LEDGER,)
    assert scene.tiered.keys == []
    flip(scene.world.objects, segment_key(ledger, 0), 700)
    assert scene.upload(ledger, "u-1").answer is OffloadStartOutcome.BEGUN


@pytest.mark.parametrize("operation", [StoreOperation.GET, StoreOperation.GET_RANGE])
def test_answer_of_a_tiered_copy_that_was_cut_off_once_is_asked_for_again(
    scene: Offloading, operation: StoreOperation
) -> None:
    """Its index and its data."""
    (ledger, _) = scene.fill(2)
    right = scene.world.payloads(scene.process())
    scene.offload(ledger)
    scene.world.objects.delete([segment_key(ledger, number) for number in range(2)])
    cut = Fault(operation=operation, kind=FaultKind.CUT)
    scene.tiered.plan(cut)
    assert scene.world.payloads(scene.process()) == right
    assert cut.times == 0


@pytest.mark.parametrize("columns", [["payload"], ["key"]])
def test_row_group_of_another_tiered_copy_is_not_ours(scene: Offloading, tmp_path: Path, columns: list[str]) -> None:
    """Its index has the digests of its column chunks."""
    data = ""
    bodies = []
    for one in (scene, Offloading(folder=tmp_path)):
        text = b"0" if one is scene else b"1"
        process = one.process(entries=1)
        for at in range(2):
            entry = NewEntry(payload=text * 9, key=f"k-{text.decode()}-{at}")
            process.append(one.world.topic, ProducedEntries(entries=[entry]))
        ledger, _ = [found.ledger_id for found in one.world.catalog.ledgers.list_ledgers(one.world.topic.topic_id)]
        one.offload(ledger)
        data, _ = one.pair(ledger)
        one.world.objects.delete([segment_key(ledger, 0)])
        bodies.append(one.body(data))
    own, other = bodies
    assert len(own) == len(other)

    def read() -> list[tuple[bytes | None, str | None]]:
        return [(entry.payload, entry.key) for entry in scene.process().scan(scene.world.topic, columns=columns)]

    right = read()
    real = scene.tiered.get_range
    answer_columns_from(scene.tiered, data, other)
    with pytest.raises(CorruptData, match=f"{data}: expected column"):
        read()
    scene.tiered.get_range = real  # type: ignore[method-assign]
    assert read() == right


def test_flipped_bits_of_a_tiered_copy_never_become_entries(scene: Offloading) -> None:
    """It is read by ranges: each page has a checksum, and whatever is damaged beyond reading is an error."""
    (ledger, _) = scene.fill(2)
    scene.offload(ledger, "u-0")
    right = scene.world.payloads(scene.process())
    scene.world.objects.delete([segment_key(ledger, number) for number in range(2)])
    data, _ = scene.pair(ledger, "u-0")
    bits, seen = len(scene.tiered._held[data].body) * 8, 0
    for bit in random.Random(11).sample(range(bits), 100):
        flip(scene.tiered, data, bit)
        try:
            assert scene.world.payloads(scene.process()) == right
        except SextonError:
            seen += 1
        flip(scene.tiered, data, bit)
    assert seen > 50
    assert scene.world.payloads(scene.process()) == right
