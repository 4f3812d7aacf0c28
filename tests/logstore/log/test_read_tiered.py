"""Reading ledgers whose primary copy is gone, going or damaged: every entry once, in order, from the tiered one."""

import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logstore.cursors.cursor_state import CursorState
from logstore.errors import CorruptData, MissingData, StoreUnavailable
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import ledger_prefix, segment_key
from logstore.log.ledgers import CopyKind
from logstore.log.services import entry_reader
from logstore.log.services.segment_reader import SegmentSource
from logstore.ports.catalog.deletion import AuditCause, Claim
from logstore.positions import LedgerId, Position
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.log.world import once
from tests.logstore.offload.offloading import Offloading

ALL = [b"%d:%d" % (ledger, at) for ledger in range(3) for at in range(4)]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Offloading]:
    """Three ledgers of two segments, the first two offloaded."""
    made = Offloading(folder=tmp_path)
    with made.world:
        ledgers = made.fill(3)
        made.offload(ledgers[0], "u-0")
        made.offload(ledgers[1], "u-1")
        made.tiered.calls.clear()
        made.world.objects.calls.clear()
        yield made


def ids(scene: Offloading) -> list[LedgerId]:
    return [one.ledger_id for one in scene.world.catalog.ledgers.list_ledgers(scene.world.topic.topic_id)]


def payloads(scene: Offloading, **asked: Position | CursorState) -> list[bytes | None]:
    found = scene.process().scan(scene.world.topic, **asked)  # type: ignore[arg-type]
    return [entry.payload for entry in found]


def remove_primaries(scene: Offloading) -> None:
    """Both phases."""
    topic = scene.world.topic.topic_id
    claim = Claim(workflow_id="w", run_id="", ttl_s=60)
    cause = AuditCause(actor="tests", reason="a test", workflow_id="w")
    offloads = scene.world.catalog.offloads
    page = offloads.list_removable_primaries(topic, None, after=LedgerId(-1), limit=100)
    proved = {one.statement.ledger_id: one.context["uuid"] for one in page}
    offloads.detach_primary_copies(topic, None, proved_uuid_by_ledger=proved, batch_id="b", claim=claim, cause=cause)
    lose_primaries(scene)


def lose_primaries(scene: Offloading) -> None:
    """Their objects are gone."""
    for ledger in ids(scene)[:2]:
        scene.world.objects.delete([found.key for found in scene.world.objects.list(ledger_prefix(ledger))])
    scene.world.objects.calls.clear()


def test_read_of_removed_primaries_comes_from_the_tiered_copies(scene: Offloading) -> None:
    """The ledgers stay listed and readable; nobody asks the primary bucket for what it was told to forget."""
    remove_primaries(scene)
    assert payloads(scene) == ALL
    asked = {key for _, key in scene.world.objects.calls}
    assert asked == {segment_key(ids(scene)[2], number) for number in range(2)}


def test_read_of_a_removed_primary_takes_one_request_a_segment(scene: Offloading) -> None:
    """Index and footer once for each ledger and scan, then one range for each row group."""
    remove_primaries(scene)
    payloads(scene)
    kinds = [operation for operation, key in scene.tiered.calls if key.startswith("u-0")]
    assert kinds == [StoreOperation.GET, StoreOperation.GET_RANGE, StoreOperation.GET_RANGE, StoreOperation.GET_RANGE]


def test_read_of_few_columns_fetches_few_bytes(scene: Offloading, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovering transactions reads no payloads from a tiered copy either."""
    large = [NewEntry(payload=random.Random(5).randbytes(400_000)) for _ in range(2)]
    process = scene.process(entries=2)
    process.roll(scene.world.topic)
    process.append(scene.world.topic, ProducedEntries(entries=large))
    process.roll(scene.world.topic)
    ledger = ids(scene)[-2]
    scene.offload(ledger, "u-large")
    remove_primaries(scene)
    fetched: list[int] = []
    real = scene.tiered.get_range

    def counting(key: str, start: int, length: int, **asked: Any) -> bytes | None:
        fetched.append(length)
        return real(key, start, length, **asked)

    monkeypatch.setattr(scene.tiered, "get_range", counting)
    found = list(process.scan(scene.world.topic, from_position=Position(ledger, 0), columns=["publish_ms"]))
    assert [entry.payload for entry in found] == [None, None]
    assert sum(fetched) < 70_000


def test_read_of_many_tiered_ledgers_keeps_few_footers(scene: Offloading, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan of a hundred thousand ledgers does not remember all of them."""
    process = scene.process(entries=1)
    for number in range(8):
        process.append(scene.world.topic, ProducedEntries(entries=[NewEntry(payload=b"%d" % number)]))
        process.roll(scene.world.topic)
    for ledger in ids(scene)[3:-1]:
        scene.offload(ledger, f"u-many-{ledger}")
    sources: list[SegmentSource] = []

    class RememberedSource(SegmentSource):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            sources.append(self)

    monkeypatch.setattr(entry_reader, "SegmentSource", RememberedSource)
    remove_primaries(scene)
    assert payloads(scene) == ALL + [b"%d" % number for number in range(8)]
    assert len(sources[-1]._opened_copies) <= 4


def test_read_that_began_before_the_removal_goes_on_in_the_tiered_copy(scene: Offloading) -> None:
    """A missing object → the catalog again → still listed → the other copy; no entry twice, none left out."""
    scan = scene.process().scan(scene.world.topic)
    found = [next(scan).payload]
    remove_primaries(scene)
    assert found + [entry.payload for entry in scan] == ALL


def test_read_where_a_primary_object_is_lost_says_so_and_goes_on(
    scene: Offloading, caplog: pytest.LogCaptureFixture
) -> None:
    """Its row says that it is there: no reader fails, and no damage is silent; once for each ledger."""
    lose_primaries(scene)
    with caplog.at_level(logging.WARNING):
        assert payloads(scene) == ALL
    assert [f"ledger {ledger}: its primary copy is damaged" in caplog.text for ledger in ids(scene)[:2]] == [True] * 2
    assert caplog.text.count("damaged") == 2


def test_read_where_a_primary_object_is_corrupt_goes_on_in_the_tiered_copy(scene: Offloading) -> None:
    """Whatever the bytes are: shorter, longer, no Parquet."""
    key = segment_key(ids(scene)[0], 0)
    scene.world.objects.delete([key])
    scene.world.objects.put_if_absent(key, b"no segment", metadata={})
    assert payloads(scene) == ALL


def test_read_of_a_corrupt_primary_without_another_copy_is_corrupt(scene: Offloading) -> None:
    """What is damaged is not called missing, nor is it when the tiered copy lacks its object."""
    for ledger in (ids(scene)[2], ids(scene)[0]):
        key = segment_key(ledger, 0)
        scene.world.objects.delete([key])
        scene.world.objects.put_if_absent(key, b"no segment", metadata={})
    scene.tiered.delete(scene.tiered.keys)
    for ledger in (ids(scene)[2], ids(scene)[0]):
        with pytest.raises(CorruptData, match=segment_key(ledger, 0)):
            payloads(scene, from_position=Position(ledger, 0))


@pytest.mark.parametrize("lost", ["u-0-ledger-0", "u-0-ledger-0-index"])
def test_read_of_a_listed_ledger_that_no_copy_holds_is_data_loss(scene: Offloading, lost: str) -> None:
    """Neither copy: `MissingData`, never a silent hole."""
    remove_primaries(scene)
    scene.tiered.delete([lost])
    with pytest.raises(MissingData, match="no copy holds it"):
        payloads(scene)
    assert payloads(scene, from_position=Position(ids(scene)[1], 0)) == ALL[4:]


def test_read_of_a_ledger_trimmed_out_of_its_tiered_copy_goes_on_beyond(
    scene: Offloading, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing ledger never pins a reader, wherever it was read from (apache/pulsar#18620)."""
    remove_primaries(scene)
    topic = scene.world.topic.topic_id

    def trim() -> None:
        scene.world.catalog.detach(topic, ids(scene)[:1])
        scene.tiered.delete([key for key in scene.tiered.keys if key.startswith("u-0")])

    scene.tiered.plan(Fault(operation=StoreOperation.GET, kind=FaultKind.CALL, action=once(trim)))
    with caplog.at_level(logging.WARNING):
        assert payloads(scene) == ALL[4:]
    assert "PositionTrimmed" in caplog.text


@pytest.mark.parametrize("change", [lambda body: body[:-1], lambda body: b"x" * len(body)], ids=["short", "other"])
def test_read_of_a_damaged_tiered_copy_is_corrupt(scene: Offloading, change: object) -> None:
    """Bytes that are not what the index says."""
    remove_primaries(scene)
    scene.damage("u-0-ledger-0", change)  # type: ignore[arg-type]
    with pytest.raises(CorruptData, match="u-0-ledger-0"):
        payloads(scene)


def test_read_of_an_index_that_knows_no_such_segment_is_corrupt(scene: Offloading) -> None:
    """The row's entries must be a row group, neither more nor less."""
    remove_primaries(scene)
    scene.damage("u-0-ledger-0-index", lambda body: body.replace(b'"first_entry": 2', b'"first_entry": 3'))
    with pytest.raises(CorruptData, match="expected a row group of 2 entries at 2"):
        payloads(scene)
    scene.damage("u-0-ledger-0-index", lambda body: body.replace(b'"entries": 2, "first_entry": 0}, ', b""))
    with pytest.raises(CorruptData):
        payloads(scene)


def test_read_while_the_tiered_bucket_is_away_is_no_loss(scene: Offloading) -> None:
    """No answer is not "absent"."""
    remove_primaries(scene)
    scene.tiered.plan(Fault(operation=StoreOperation.GET, kind=FaultKind.BEFORE))
    with pytest.raises(StoreUnavailable):
        payloads(scene)
    assert payloads(scene) == ALL


def test_read_for_a_subscription_sees_the_same_entries_from_either_copy(scene: Offloading) -> None:
    """Cursors, windows and single acknowledgements do not know where entries stand."""
    mark = CursorState(Position(ids(scene)[0], 1))
    before = payloads(scene, cursor_state=mark)
    remove_primaries(scene)
    assert payloads(scene, cursor_state=mark) == before == ALL[2:]
    window = payloads(scene, from_position=Position(ids(scene)[0], 3), up_to=Position(ids(scene)[1], 1))
    assert window == ALL[3:6]


def test_reader_without_tiered_buckets_meets_data_loss_as_before(scene: Offloading) -> None:
    """A process that was given none."""
    remove_primaries(scene)
    with pytest.raises(MissingData):
        list(scene.world.process().scan(scene.world.topic))
    ledger = scene.world.catalog.ledgers.list_ledgers(scene.world.topic.topic_id)[0]
    assert ledger.copies == (CopyKind.OFFLOADED_LEDGER,)
