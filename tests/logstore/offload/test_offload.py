"""Writing tiered copies: their format, their evidence, and what every kind of failure leaves behind."""

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from logstore.deletion.intents import DeletionState
from logstore.errors import (
    CorruptData,
    MissingData,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
    UploadTimedOut,
    UploadUnproven,
)
from logstore.failpoints import SimulatedCrash
from logstore.log.ledger_object_keys import segment_key
from logstore.log.segment_format import entry_schema
from logstore.offload.tiered_copy import (
    UPLOAD_GRACE_S,
    RowGroupEntries,
    TieredIndex,
    data_key,
    index_key,
    upload_requests_end_us,
)
from logstore.ports.catalog.offload import OffloadStartOutcome, PublishedTieredCopy, ReadableCopies
from logstore.positions import LedgerId
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.offload.offloading import METADATA, UUID, Offloading


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Offloading]:
    """Two buckets and a topic."""
    made = Offloading(folder=tmp_path / "made-if-need-be")
    with made.world:
        yield made


def is_index(key: str) -> bool:
    return key.endswith("-index")


def is_data(key: str) -> bool:
    return not is_index(key)


def test_upload_writes_one_row_group_for_each_segment_in_order(scene: Offloading) -> None:
    """The data object is the ledger: same columns, same compression, entries in order, a row group a segment."""
    ledger = scene.fill()[0]
    scene.offload(ledger)
    file = pq.ParquetFile(io.BytesIO(scene.body(scene.pair(ledger)[0])))
    assert file.schema_arrow.equals(entry_schema(), check_metadata=False)
    assert [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)] == [2, 2]
    assert {file.metadata.row_group(0).column(at).compression for at in range(3)} == {"ZSTD"}
    assert file.read(["payload"]).column("payload").to_pylist() == [b"0:0", b"0:1", b"0:2", b"0:3"]


def test_upload_index_vouches_for_the_data(scene: Offloading) -> None:
    """Statement, length, SHA-256 and the place of each segment; the statement stands on both objects too."""
    ledger = scene.fill()[0]
    evidence = scene.offload(ledger)
    data, index = scene.pair(ledger)
    told = json.loads(scene.body(index))
    assert told["sha256"] == evidence.sha256 == hashlib.sha256(scene.body(data)).hexdigest()
    assert told["size_bytes"] == evidence.size_bytes == len(scene.body(data))
    assert told["row_groups"] == [{"first_entry": 0, "entries": 2}, {"first_entry": 2, "entries": 2}]
    assert (told["uuid"], told["entries"]) == (UUID, 4)
    read = TieredIndex.from_json(scene.body(index), name=index)
    assert read.row_groups == (RowGroupEntries(first_entry=0, entries=2), RowGroupEntries(first_entry=2, entries=2))
    for key in (data, index):
        found = scene.tiered.head(key)
        assert found
        assert found[1] == read.statement.to_metadata() == told["statement"]
    assert scene.tiered.keys == [data, index]


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"statement": {}}', b"\xff"])
def test_index_that_is_none_is_corrupt(body: bytes) -> None:
    """Any other object under that name."""
    with pytest.raises(CorruptData, match="key: not the index"):
        TieredIndex.from_json(body, name="key")


def test_upload_in_parts_holds_one_segment_and_one_part(scene: Offloading) -> None:
    """A large file goes up in parts and is the same file."""
    scene.tiered.part_bytes = 100
    ledger = scene.fill()[0]
    evidence = scene.offload(ledger)
    assert hashlib.sha256(scene.body(scene.pair(ledger)[0])).hexdigest() == evidence.sha256


def test_upload_again_finds_the_published_copy_and_looks_at_it(scene: Offloading) -> None:
    """ALREADY is answered with evidence too: a LIVE copy that storage lacks is data loss, not success."""
    ledger = scene.fill()[0]
    evidence = scene.offload(ledger)
    again = scene.upload(ledger, "another")
    assert (again.answer, again.evidence) == (OffloadStartOutcome.ALREADY, evidence)
    data, index = scene.pair(ledger)
    scene.damage(data, lambda body: body + b"x")
    with pytest.raises(CorruptData, match="bytes"):
        scene.upload(ledger, "another")
    for key in (data, index):
        scene.tiered.delete([key])
        with pytest.raises(MissingData, match=UUID):
            scene.upload(ledger, "another")


def test_upload_of_a_ledger_that_was_deleted_is_no_error(scene: Offloading) -> None:
    """Nothing is stored for what no list has."""
    ledgers = scene.fill()
    scene.world.catalog.detach(scene.world.topic.topic_id, ledgers[:1])
    assert scene.upload(ledgers[0]).answer is OffloadStartOutcome.GONE
    assert scene.tiered.keys == []


def test_upload_of_an_open_ledger_is_refused(scene: Offloading) -> None:
    """Its end is not known."""
    with pytest.raises(PreconditionFailed, match="CLOSED"):
        scene.upload(scene.fill()[-1])


@pytest.mark.parametrize("which", [is_data, is_index], ids=["data", "index"])
def test_upload_that_left_nothing_is_an_error(scene: Offloading, which: Callable[[str], bool]) -> None:
    """Manual offload reported success though nothing was uploaded (apache/pulsar#22839): done needs evidence."""
    ledger = scene.fill()[0]
    scene.tiered.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.LOST, matches=which))
    with pytest.raises(UploadUnproven, match="not there"):
        scene.upload(ledger)
    assert scene.world.catalog.offloads.find_readable_copies(ledger) == ReadableCopies(primary=True)
    assert [row.context["uuid"] for row in scene.intents()] == [UUID]


@pytest.mark.parametrize("which", [is_data, is_index], ids=["data", "index"])
@pytest.mark.parametrize("change", [lambda body: body[:-1], lambda body: body[:-1] + b"?"], ids=["short", "other"])
def test_upload_that_left_something_else_is_an_error(
    scene: Offloading, which: Callable[[str], bool], change: Callable[[bytes], bytes]
) -> None:
    """Length and checksum are those of the object that the store gives back, not of what was sent."""
    ledger = scene.fill()[0]
    key = next(key for key in scene.pair(ledger) if which(key))
    damage = Fault(
        operation=StoreOperation.HEAD,
        kind=FaultKind.CALL,
        matches=lambda found: found == key,
        action=lambda: scene.damage(key, change),
    )
    scene.tiered.plan(damage)
    with pytest.raises(UploadUnproven, match="expected"):
        scene.upload(ledger)
    assert not scene.world.catalog.offloads.publish_tiered_copy(ledger, UUID)


def test_upload_past_its_time_sends_nothing_more(scene: Offloading) -> None:
    """The deadline is asked before every part by a clock that never jumps, counted from before the row was made."""
    scene.tiered.part_bytes = 100
    ledger = scene.fill()[0]
    reads: list[str] = []

    def slow() -> None:
        reads.append("one")
        scene.now_s += 30

    scene.world.objects.plan(Fault(operation=StoreOperation.GET, kind=FaultKind.CALL, times=9, action=slow))
    with pytest.raises(UploadTimedOut, match=UUID):
        scene.upload(ledger, timeout_s=60)
    assert (len(reads), scene.tiered.keys, scene.tiered.unfinished) == (2, [], set())
    assert scene.upload(ledger, "u-2", timeout_s=600).answer is OffloadStartOutcome.BEGUN


@pytest.mark.parametrize("error", [StoreUnavailable("planned"), OutcomeUnknown("planned")])
def test_upload_that_failed_gives_its_ledger_back(scene: Offloading, error: Exception) -> None:
    """Its intent waits two minutes for a request that was not answered, not for the whole time of an upload."""
    ledger = scene.fill()[0]
    fault = Fault(operation=StoreOperation.PUT, kind=FaultKind.AFTER, matches=is_index, error=lambda: error)
    scene.tiered.plan(fault)
    with pytest.raises(type(error), match="planned"):
        scene.upload(ledger, timeout_s=2_700)
    (intent,) = scene.intents()
    assert intent.state is DeletionState.PENDING
    ends_us = upload_requests_end_us(intent.context)
    assert ends_us is not None
    assert ends_us - scene.world.catalog.now_us == UPLOAD_GRACE_S * 1_000_000
    assert {name: intent.context[name] for name in METADATA} == METADATA  # what deletion needs (apache/pulsar#16687)
    assert len(scene.tiered.keys) == 2  # it had landed


def test_upload_that_died_is_replaced_by_the_next_one(scene: Offloading) -> None:
    """Its parts are named by its uuid, and its uuid by an intent, before the next attempt sends anything."""
    scene.tiered.part_bytes = 100
    ledger = scene.fill()[0]
    calls = iter(range(100))

    def die() -> float:
        if next(calls) > 4:
            raise SimulatedCrash("killed")
        return 0.0

    with pytest.raises(SimulatedCrash):
        scene.offloader(die).upload_and_prove(ledger, UUID, timeout_s=60)
    assert scene.tiered.unfinished == {scene.pair(ledger)[0]}
    assert scene.intents() == []
    scene.offload(ledger, "u-2")
    assert [row.context["uuid"] for row in scene.intents()] == [UUID]


def test_upload_whose_source_is_gone_tells_a_delete_from_a_loss(scene: Offloading) -> None:
    """A listed ledger without its segment is data loss; one that was deleted under the upload is gone."""
    first, second = scene.fill(3)[:2]
    for ledger in (first, second):
        scene.world.objects.delete([segment_key(ledger, 1)])
    with pytest.raises(MissingData, match="is listed and not in storage"):
        scene.upload(first)
    topic = scene.world.topic.topic_id
    detach = Fault(
        operation=StoreOperation.GET,
        kind=FaultKind.CALL,
        matches=lambda key: key == segment_key(second, 1),
        action=lambda: scene.world.catalog.detach(topic, [second]),
    )
    scene.world.objects.plan(detach)
    assert scene.upload(second, "u-2").answer is OffloadStartOutcome.GONE
    assert scene.tiered.keys == []


def test_upload_of_rows_that_do_not_add_up_is_refused(scene: Offloading) -> None:
    """Nothing incomplete becomes a copy: the segments must be the ledger's entries, one after the other."""
    ledger = scene.fill()[0]
    rows = scene.world.catalog.segment_rows
    whole = rows[ledger]
    apart = [whole[0], replace(whole[1], first_entry=3)]
    for broken, found in ((whole[:1], "found 2 in segments"), (apart, "found 3")):
        rows[ledger] = broken
        with pytest.raises(CorruptData, match=found):
            scene.upload(ledger, f"u-{found}")
    assert scene.tiered.keys == []


def test_ledger_ids_at_the_edge_have_keys_of_their_own() -> None:
    """Ids 1 and 12 share a prefix, and never a key; 0 is an ordinary id (apache/bookkeeper#950)."""
    ids = [LedgerId(0), LedgerId(1), LedgerId(12), LedgerId(2**63 - 1)]
    keys = {key for one in ids for key in (data_key(UUID, one), index_key(UUID, one))}
    assert len(keys) == 2 * len(ids)


def published(scene: Offloading) -> PublishedTieredCopy:
    """The one copy that could let its primary go."""
    (copy,) = scene.world.catalog.offloads.list_removable_primaries(
        scene.world.topic.topic_id, None, after=LedgerId(-1), limit=9
    )
    return copy


def test_published_copy_of_the_same_size_with_another_content_is_not_proved(scene: Offloading) -> None:
    """A HEAD of the right length and owner passed, and `--delete-primary` made the damage permanent."""
    (ledger, _) = scene.fill(2)
    scene.offload(ledger)
    data, _ = scene.pair(ledger)
    copy = published(scene)
    reads = [name for operation, name in scene.tiered.calls if operation is StoreOperation.GET_RANGE]
    assert scene.offloader().prove(copy).uuid == copy.context["uuid"]
    asked = [name for operation, name in scene.tiered.calls if operation is StoreOperation.GET_RANGE]
    assert asked == reads, "the store's mark of the content is enough: nothing is read again"
    scene.damage(data, lambda body: body[:50] + bytes([body[50] ^ 1]) + body[51:])
    with pytest.raises(CorruptData, match="of the same length"):
        scene.offloader().prove(copy)


def test_published_copy_under_another_mark_is_proved_by_its_content(scene: Offloading) -> None:
    """A copy from before marks were kept, or that was moved to another store, is read as a whole."""
    (ledger, _) = scene.fill(2)
    scene.offload(ledger)
    copy = published(scene)
    for etag in ("", "another"):
        index = json.dumps({**json.loads(scene.body(scene.pair(ledger)[1])), "etag": etag}).encode()
        scene.damage(scene.pair(ledger)[1], lambda _body, changed=index: changed)  # type: ignore[misc]
        assert scene.offloader().prove(copy).entries == copy.entries
