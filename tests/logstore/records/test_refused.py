"""A value that no block can hold: its record is left out of the flush, named, and all others are flushed."""

import pytest

from logstore.records.record_kinds import RecordKind
from logstore.records.services.flusher import CHANGES_PER_PAGE, find_unrecordable
from tests.logstore.records.world import RecordsWorld


@pytest.mark.parametrize("page", [CHANGES_PER_PAGE, 2])
def test_record_that_no_block_can_hold_is_left_alone_and_named(world: RecordsWorld, page: int) -> None:
    """A number beyond 64 bits, and bytes that are no text; once they are mended, the next flush takes them."""
    world.page = page
    first, second, third = (world.create() for _ in range(3))
    world.sql("UPDATE ledger SET application = x'61ff' WHERE ledger_id = :id", id=second)
    world.sql("UPDATE segment SET size_bytes = 1e19 WHERE ledger_id = :id", id=first)
    done = world.flush()
    told = sorted(map(str, find_unrecordable(world.catalog.records)))
    assert told == [
        f"ledger {second}: application: expected text that UTF-8 can hold, found b'a\\xff'",
        f"segment {first} 0: size_bytes: expected a whole number of 64 bits, found 1e+19",
    ]
    assert (done.refused, done.refusal) == (2, told[0])
    assert world.returning() == {first, third}
    assert world.winners(RecordKind.SEGMENT).column("id").to_pylist() == [second, third]
    assert done.left == len(world.sql("SELECT * FROM record_outbox")) == 2
    again = world.flush()
    assert (again.manifest, again.blocks, again.flushes, again.refused) == (done.manifest, 0, 0, 2)
    world.sql("UPDATE ledger SET application = 'sexton'")
    world.sql("UPDATE segment SET size_bytes = 10")
    assert (world.flush().refused, find_unrecordable(world.catalog.records)) == (0, [])
    assert world.returning() == {first, second, third}


def test_deletes_of_a_ledger_that_is_left_out_wait_and_others_go_on(world: RecordsWorld) -> None:
    """The other copy of it, or its tombstone, must not be thought to be in a block."""
    first, second = world.create(), world.create()
    world.sql("UPDATE ledger SET application = x'61ff' WHERE ledger_id = :id", id=second)
    world.flush()
    assert world.catalog.records.find_unflushed_ledgers([first, second]) == {second}
