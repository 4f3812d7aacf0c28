"""The record log in its bucket: manifests, blocks, pins, and what replicas acknowledged."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from logstore.errors import (
    AlreadyExists,
    CorruptData,
    InvalidInput,
    MissingData,
    StoreUnavailable,
    Unsupported,
    UploadUnproven,
)
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.records.manifest import IdCeilings, Manifest, manifest_key
from logstore.records.rebuild_job import RebuildId
from logstore.records.record_kinds import RECORD_LOG_FORMAT, RecordKind
from logstore.records.services.rebuild_manifests import RebuildManifests
from logstore.records.services.record_log import PIN_PREFIX, REGISTER_PREFIX, REPLICA_PREFIX, Pin, RecordLog
from tests.fakes.object_store import FakeObjectStore, Fault, FaultKind, StoreOperation
from tests.logstore.records.versions import table, version

_CATALOG = "01234567-89ab-4cde-8f01-23456789abcd"


@pytest.fixture
def objects() -> FakeObjectStore:
    return FakeObjectStore()


@pytest.fixture
def log(objects: FakeObjectStore) -> RecordLog:
    return RecordLog(objects)


def manifest(number: int, stamp: str = "s") -> Manifest:
    """One without blocks."""
    return Manifest(
        number=number, catalog_id="c", epoch=1, bundles=64, stamp=stamp, flushed_us=number, ceilings=IdCeilings()
    )


def test_newest_manifest_is_the_one_of_the_highest_number(log: RecordLog, objects: FakeObjectStore) -> None:
    """Other objects beside manifests are passed over."""
    assert log.read_newest_manifest() is None
    for number in (9, 10, 100, 11):
        log.put_manifest(manifest(number))
    objects.put_if_absent("records/manifest/README", b"x", metadata={})
    assert log.read_newest_manifest() == manifest(100)
    assert log.read_newest_manifest(from_number=100) == manifest(100)
    assert log.read_newest_manifest(from_number=101) is None
    assert log.list_manifest_numbers(after=10) == [11, 100]


@pytest.mark.parametrize("point", ["records.put_manifest.after", "records.mark_begun.before"])
def test_log_whose_writer_died_before_the_mark_is_marked_behind_the_next_manifest(
    log: RecordLog, objects: FakeObjectStore, point: str
) -> None:
    """The first manifest stands until then: it is older than all that sweeps keep, or among them."""
    arm(point, "crash")
    with pytest.raises(SimulatedCrash):
        log.put_manifest(manifest(1))
    disarm_all_and_take_hits()
    RecordLog(objects).put_manifest(manifest(2))
    objects.delete([manifest_key(1)])
    objects.unlisted = {"records/manifest/": 1}
    with pytest.raises(StoreUnavailable, match="records/registers/begun"):
        RecordLog(objects).read_newest_manifest()


def test_of_two_manifests_of_one_number_one_is_put(log: RecordLog) -> None:
    """The other writer is told, and reads whose it is."""
    log.put_manifest(manifest(1, "ours"))
    log.put_manifest(manifest(1, "ours"))  # the same again is no other
    with pytest.raises(AlreadyExists):
        log.put_manifest(manifest(1, "theirs"))
    assert log.read_manifest(1) == manifest(1, "ours")
    assert log.read_manifest(2) is None


@pytest.mark.parametrize(
    "put",
    [
        lambda log: log.put_manifest(manifest(1)),
        lambda log: list(log.put_blocks(RecordKind.LEDGER, table(RecordKind.LEDGER, [version(1, 0)]))),
        lambda log: log.pin_manifest("p", 1, 5, "raid"),
        lambda log: log.acknowledge_manifest("r", 1, 1, 5),
        lambda log: log.revoke_replica("r"),
    ],
    ids=["manifest", "block", "pin", "acknowledgement", "revocation"],
)
def test_object_that_the_store_does_not_show_is_not_taken_for_stored(
    put: Callable[[RecordLog], object], log: RecordLog, objects: FakeObjectStore
) -> None:
    """Others rely on each of them: what was answered and not kept would lose records, or let tombstones go early."""
    objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.LOST))
    with pytest.raises(UploadUnproven, match="not there"):
        put(log)
    assert objects.keys == []
    put(log)
    assert len([key for key in objects.keys if not key.startswith(REGISTER_PREFIX)]) == 1


def test_answer_that_was_cut_off_once_makes_no_manifest_and_no_block_corrupt(
    log: RecordLog, objects: FakeObjectStore
) -> None:
    """A rebuild would leave the block out, and a flush would end for good."""
    log.put_manifest(manifest(1))
    (block,) = log.put_blocks(RecordKind.LEDGER, table(RecordKind.LEDGER, [version(1, 0)]))
    for read in (lambda: RecordLog(objects).read_manifest(1), lambda: log.read_block(block)):
        whole = read()
        cut = Fault(operation=StoreOperation.GET, kind=FaultKind.CUT)
        objects.plan(cut)
        assert read() == whole
        assert cut.times == 0


def test_a_manifest_of_a_newer_format_or_of_no_sense_is_named(log: RecordLog, objects: FakeObjectStore) -> None:
    """Nothing is concluded from one that cannot be read."""
    log.put_manifest(replace(manifest(1), format=RECORD_LOG_FORMAT + 1))
    objects.put_if_absent(manifest_key(2), b"{", metadata={})
    with pytest.raises(Unsupported, match="000000000001"):
        RecordLog(objects).read_manifest(1)
    with pytest.raises(CorruptData, match="000000000002"):
        log.read_newest_manifest()


def test_a_newest_manifest_that_goes_while_it_is_read_is_no_empty_log(log: RecordLog, objects: FakeObjectStore) -> None:
    """It is asked for again."""
    log.put_manifest(manifest(1))

    def remove() -> None:
        objects.delete([manifest_key(1)])

    gone = Fault(operation=StoreOperation.GET, kind=FaultKind.CALL, action=remove)
    objects.plan(gone)
    with pytest.raises(StoreUnavailable, match="listed"):
        log.read_newest_manifest()


def test_blocks_come_back_and_are_named_where_they_are_damaged(log: RecordLog, objects: FakeObjectStore) -> None:
    """A block that a manifest names and the bucket has not is data loss."""
    versions = table(RecordKind.LEDGER, [version(one, 1) for one in range(5)])
    (block,) = log.put_blocks(RecordKind.LEDGER, versions)
    assert log.read_block(block).equals(versions)
    assert log.read_block(block, ["id"], (2, 3)).column("id").to_pylist() == [2, 3]
    whole = objects._held[block.key]
    objects._held[block.key] = replace(whole, body=whole.body[:-1])
    with pytest.raises(CorruptData, match=block.key):
        log.read_block(block)
    objects.delete([block.key])
    with pytest.raises(MissingData, match=block.key):
        log.read_block(block)


def test_a_pin_holds_until_it_is_renewed_taken_back_or_run_out(log: RecordLog, objects: FakeObjectStore) -> None:
    """One object for each, whatever its name."""
    log.pin_manifest("rebuild-catalog/c.1-7", 7, 100, "rebuild")
    log.pin_manifest("for ever", 7, 10**18, "rebuild")
    log.pin_manifest("raid", 8, 50, "raid")
    log.pin_manifest("raid", 8, 200, "raid")
    forever = Pin(pin_id="for ever", purpose="rebuild", manifest=7, until_us=10**18)
    assert log.list_pins(now_us=100) == [Pin(pin_id="raid", purpose="raid", manifest=8, until_us=200), forever]
    log.unpin("for ever")
    assert {one.pin_id for one in log.list_pins()} == {"raid", "rebuild-catalog/c.1-7"}
    assert len([key for key in objects.keys if key.startswith(PIN_PREFIX)]) == 2
    log.unpin("rebuild-catalog/c.1-7")
    log.unpin("rebuild-catalog/c.1-7")
    assert {one.pin_id for one in log.list_pins()} == {"raid"}
    with pytest.raises(InvalidInput, match="one word"):
        log.pin_manifest("raid", 8, 200, "a/b")


def test_a_pin_whose_renewal_dies_midway_still_holds(log: RecordLog) -> None:
    """Both stand then, and the longer one counts."""
    log.pin_manifest("raid", 8, 50, "raid")
    arm("records.pin.after", "crash")
    with pytest.raises(SimulatedCrash):
        log.pin_manifest("raid", 8, 200, "raid")
    disarm_all_and_take_hits()
    assert [one.until_us for one in log.list_pins(now_us=100)] == [200]


@pytest.mark.parametrize("hidden", [PIN_PREFIX, f"{PIN_PREFIX}rebuild/"])
def test_pin_that_a_listing_hides_is_known_by_its_name(log: RecordLog, objects: FakeObjectStore, hidden: str) -> None:
    """As if it were listed, until it runs out or is let go."""
    rebuild = RebuildId.for_command(_CATALOG, 7, database_url="sqlite:///a.db", skip_unreadable=False)
    log.pin_manifest(str(rebuild), 7, 50, "rebuild")
    log.pin_manifest(str(rebuild), 7, 100, "rebuild")
    log.pin_manifest("another", 8, 200, "rebuild")
    log.unpin("another")
    objects.unlisted = {hidden: 1_000}
    expected = [Pin(pin_id=str(rebuild), purpose="rebuild", manifest=7, until_us=100)]
    assert RecordLog(objects).list_pins() == expected
    assert RebuildManifests(log).list_pinned_rebuilds() == [rebuild]
    assert RecordLog(objects).list_pins(now_us=100) == []
    log.unpin(str(rebuild))
    assert [key for key in objects.keys if key.startswith(PIN_PREFIX)] == []
    objects.unlisted = {}
    assert RecordLog(objects).list_pins() == []


def test_pin_that_is_let_go_while_pins_are_listed_is_not_missed(log: RecordLog, objects: FakeObjectStore) -> None:
    """Its name has ended by then."""
    log.pin_manifest("a", 8, 200, "rebuild")
    let_go = Fault(operation=StoreOperation.LIST, kind=FaultKind.CALL, action=lambda: RecordLog(objects).unpin("a"))
    objects.plan(let_go)
    assert log.list_pins() == []


@pytest.mark.parametrize("point", ["records.pin.after", "records.unpin.before", "records.unpin.after"])
def test_pin_of_a_process_that_dies_midway_makes_no_listing_doubtful(log: RecordLog, point: str) -> None:
    """A name is entered behind the pin, and ended before the pin is deleted."""

    def pin_and_unpin() -> None:
        log.pin_manifest("a", 8, 200, "rebuild")
        log.unpin("a")

    arm(point, "crash")
    with pytest.raises(SimulatedCrash):
        pin_and_unpin()
    disarm_all_and_take_hits()
    assert len(log.list_pins()) == (0 if point == "records.unpin.after" else 1)


@pytest.mark.parametrize("hidden", [REPLICA_PREFIX, f"{REPLICA_PREFIX}a/"])
def test_replica_that_a_listing_hides_counts_as_having_applied_nothing(
    log: RecordLog, objects: FakeObjectStore, hidden: str
) -> None:
    """Unless it was revoked or forgotten."""
    log.register_replica("a", 10)
    log.acknowledge_manifest("a", 7, 1, 11)
    log.acknowledge_manifest("forgotten", 7, 1, 11)
    log.forget_replica("forgotten")
    objects.unlisted = {hidden: 1}
    found = RecordLog(objects).list_certain_acknowledgements()
    assert [(one.replica_id, one.manifest, one.is_revoked) for one in found] == [("a", 0, False)]
    assert RecordLog(objects).list_certain_acknowledgements() == RecordLog(objects).list_lowest_acknowledgements()
    log.revoke_replica("a")
    objects.unlisted = {hidden: 1}
    assert RecordLog(objects).list_certain_acknowledgements() == []


def test_replica_that_another_process_forgot_is_entered_again(log: RecordLog, objects: FakeObjectStore) -> None:
    """A process remembers which names it has entered; a registration does not rely on that."""
    log.acknowledge_manifest("a", 7, 1, 10)
    RecordLog(objects).forget_replica("a")
    log.register_replica("a", 11)
    assert RecordLog(objects).is_registered("a")
    objects.unlisted = {REPLICA_PREFIX: 1}
    assert [replica.replica_id for replica in RecordLog(objects).list_certain_acknowledgements()] == ["a"]


def test_replica_that_is_forgotten_while_replicas_are_listed_is_not_waited_for(
    log: RecordLog, objects: FakeObjectStore
) -> None:
    """Its name was read before, and the listing lacks it rightly."""
    log.acknowledge_manifest("a", 7, 1, 10)
    log.acknowledge_manifest("b", 8, 1, 10)
    forget = Fault(
        operation=StoreOperation.LIST,
        kind=FaultKind.CALL,
        action=lambda: RecordLog(objects).forget_replica("a"),
        matches=lambda prefix: prefix == REPLICA_PREFIX,
    )
    objects.plan(forget)
    assert [replica.replica_id for replica in log.list_certain_acknowledgements()] == ["b"]


@pytest.mark.parametrize("point", ["records.acknowledge.after", "records.forget.before", "records.forget.after"])
def test_replica_that_dies_midway_makes_no_listing_doubtful(log: RecordLog, point: str) -> None:
    """Its name is entered behind its word, and ended before that is deleted."""

    def acknowledge_and_forget() -> None:
        log.acknowledge_manifest("a", 4, 1, 10)
        log.forget_replica("a")

    arm(point, "crash")
    with pytest.raises(SimulatedCrash):
        acknowledge_and_forget()
    disarm_all_and_take_hits()
    assert RecordLog(log._objects).list_certain_acknowledgements() == log.list_lowest_acknowledgements()


def _plan_before_entry(objects: FakeObjectStore, action: Callable[[], None]) -> None:
    objects.plan(
        Fault(
            operation=StoreOperation.PUT,
            kind=FaultKind.CALL,
            action=action,
            matches=lambda key: key.startswith(f"{REGISTER_PREFIX}replicas/"),
        )
    )


def test_replica_that_is_forgotten_while_it_acknowledges_stands_in_no_register(
    log: RecordLog, objects: FakeObjectStore
) -> None:
    """Raids would wait for it for ever: nobody acknowledges in its name any more."""
    _plan_before_entry(objects, lambda: RecordLog(objects).forget_replica("a"))
    log.acknowledge_manifest("a", 2, 1, 10)
    assert log.list_certain_acknowledgements() == []
    log.acknowledge_manifest("a", 3, 1, 11)
    assert RecordLog(objects).is_registered("a")


def test_replica_that_acknowledges_twice_at_once_stays_registered(log: RecordLog, objects: FakeObjectStore) -> None:
    """The later word takes the place of the earlier one, which is no forgetting."""
    _plan_before_entry(objects, lambda: RecordLog(objects).acknowledge_manifest("a", 3, 1, 11))
    log.acknowledge_manifest("a", 2, 1, 10)
    assert RecordLog(objects).is_registered("a")


def test_the_newest_manifest_is_pinned_while_it_is_the_newest(log: RecordLog, objects: FakeObjectStore) -> None:
    """Where a sweep may have overlooked the pin, for many newer ones had come, the newest of those is taken."""
    assert log.pin_newest_complete_manifest("raid", 10, "raid") is None
    log.put_manifest(manifest(1))

    def overtake() -> None:
        for number in range(2, 80):
            log.put_manifest(manifest(number))

    slow = Fault(
        operation=StoreOperation.PUT, kind=FaultKind.CALL, action=overtake, matches=lambda key: PIN_PREFIX in key
    )
    objects.plan(slow)
    found = log.pin_newest_complete_manifest("raid", 10, "raid")
    assert found == manifest(79)
    assert [one.manifest for one in log.list_pins()] == [79]


def test_replicas_say_how_far_they_are(log: RecordLog, objects: FakeObjectStore) -> None:
    """By the store's clock, and one object for each."""
    log.acknowledge_manifest("b", 0, 1, 10)
    log.acknowledge_manifest("a/1", 4, 1, 10)
    objects.advance(seconds=1)
    log.acknowledge_manifest("a/1", 5, 1, 11)
    found = log.list_lowest_acknowledgements()
    assert [(one.replica_id, one.manifest, one.epoch) for one in found] == [("a/1", 5, 1), ("b", 0, 1)]
    assert found[0].at_us - found[1].at_us == 1_000_000
    assert len([key for key in objects.keys if key.startswith(REPLICA_PREFIX)]) == 2
    log.forget_replica("b")
    assert [one.replica_id for one in log.list_lowest_acknowledgements()] == ["a/1"]


def test_a_replica_that_is_half_forgotten_is_still_revoked(log: RecordLog, objects: FakeObjectStore) -> None:
    """Its word without what revoked it would count again."""
    log.acknowledge_manifest("a", 4, 1, 10)
    log.revoke_replica("a")
    objects.plan(
        Fault(operation=StoreOperation.DELETE, kind=FaultKind.REPORT_KEY_FAILED, matches=lambda key: key.endswith("10"))
    )
    with pytest.raises(StoreUnavailable):
        log.forget_replica("a")
    assert [one.is_revoked for one in log.list_lowest_acknowledgements()] == [True]
    log.forget_replica("a")
    assert [key for key in objects.keys if key.startswith(REPLICA_PREFIX)] == []


def test_a_replica_that_dies_between_two_words_counts_by_the_lower_one(log: RecordLog) -> None:
    """It may have applied less than the later one says, never less than the earlier one; and there is always one."""
    log.acknowledge_manifest("a", 4, 1, 10)
    arm("records.acknowledge.after", "crash")
    with pytest.raises(SimulatedCrash):
        log.acknowledge_manifest("a", 5, 1, 11)
    disarm_all_and_take_hits()
    assert [one.manifest for one in log.list_lowest_acknowledgements()] == [4]
    log.acknowledge_manifest("a", 5, 1, 12)
    assert [one.manifest for one in log.list_lowest_acknowledgements()] == [5]


def test_known_manifest_that_a_listing_lacks_is_asked_for_by_name(log: RecordLog, objects: FakeObjectStore) -> None:
    """Nobody is told to write the record log anew; one that is really gone is none."""
    for number in (1, 2, 3):
        log.put_manifest(manifest(number))
    for hidden in ("records/", manifest_key(3)):
        objects.unlisted = {hidden: 1}
        with pytest.raises(StoreUnavailable, match="HEAD finds it, LIST does not"):
            RecordLog(objects).read_newest_manifest(from_number=3)
    assert log.read_newest_manifest(from_number=3) == manifest(3)
    objects.delete([manifest_key(3)])
    assert RecordLog(objects).read_newest_manifest(from_number=3) is None


@pytest.mark.parametrize(("first", "last"), [(4, 4), (4, 7), (150, 260)])
def test_rebuild_begins_with_no_manifest_that_is_not_the_newest(
    log: RecordLog, objects: FakeObjectStore, first: int, last: int
) -> None:
    """Newer ones that the listing lacks are found by name, also where sweeps have removed the first of them."""
    for number in (1, 2, 3, *range(first, last + 1)):
        log.put_manifest(manifest(number))
    objects.unlisted = {manifest_key(number): 3 for number in range(first, last + 1)}
    with pytest.raises(StoreUnavailable, match="HEAD finds it, LIST does not"):
        RebuildManifests(log).require_newest_manifest()
    assert RebuildManifests(log).require_newest_manifest() == manifest(last), "the second listing shows them"
    assert objects.unlisted == {}
