"""Segments that are not what was stored: a bit that flipped, and the bytes of another object."""

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from logstore.errors import CorruptData, SextonError
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledgers import CopyKind, segment_key
from logstore.ports.catalog import OffloadAnswer
from logstore.positions import LedgerId
from tests.fakes.objects import FakeObjectStore, _Held
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


def put_behind(objects: FakeObjectStore, key: str, change: Callable[[_Held], _Held]) -> None:
    """Let an object be another one, behind the port's back."""
    objects._held[key] = change(objects._held[key])


def flip(objects: FakeObjectStore, key: str, bit: int) -> None:
    """Turn one bit around."""

    def flipped(held: _Held) -> _Held:
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


def test_segment_whose_metadata_has_another_digest_than_its_row_is_corrupt(world: World) -> None:
    """Row and object vouch for each other: where one was changed, neither is believed."""
    world.process().append(world.topic, plain(b"a"))
    (key,) = world.segments()
    put_behind(world.objects, key, lambda held: replace(held, metadata=held.metadata | {"sha256": "0" * 64}))
    with pytest.raises(CorruptData, match="in its metadata"):
        world.payloads()


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
    assert scene.world.catalog.ledgers.listed(scene.world.topic.topic_id)[0].copies == (CopyKind.LEDGER,)
    assert scene.tiered.keys == []
    flip(scene.world.objects, segment_key(ledger, 0), 700)
    assert scene.upload(ledger, "u-1").answer is OffloadAnswer.BEGUN


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
