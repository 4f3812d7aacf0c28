"""The compacted ledger of a topic is in the last entry of its cursor ledger, which a broker may replace at any time."""

from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from infra.pulsar.bookie_reads import BookieDirectory
from infra.pulsar.compacted_ledgers import find_compacted_ledgers, resolve_compaction_cursors
from infra.pulsar.scan_facts import CompactionCursor, ScanFact, ScannedReference, ScanProblem
from infra.pulsar.znode_reads import ZnodeReader
from logstore.pulsar.znode_names import format_ledger_path
from tests.infra.pulsar.fake_bookie import (
    FakeBookie,
    answer_entries,
    answer_with,
    answer_with_code,
    run_bookie,
    seal_entry,
)
from tests.logstore.pulsar import wire

pytestmark = pytest.mark.external_service

_CURSOR = "managed-ledgers/t/ns/persistent/a/__compaction"


@pytest.fixture
def bookie() -> Iterator[FakeBookie]:
    with run_bookie(answer_with(seal_entry(8, 5, wire.cursor_position(compacted=31)))) as bookie:
        yield bookie


def write_cursor_ledger(cluster: KazooClient, bookie: FakeBookie, ledger_id: int) -> None:
    ids = [f"127.0.0.1:{bookie.address.port}"]
    cluster.create(
        f"/ledgers/{format_ledger_path(ledger_id)}", wire.ledger_metadata(state=1, bookies=ids), makepath=True
    )


def find(reader: ZnodeReader, cursor_ledger_id: int) -> list[ScanFact]:
    cursor = CompactionCursor(_CURSOR, cursor_ledger_id)
    return find_compacted_ledgers(reader, BookieDirectory(reader, "ledgers"), "ledgers", [cursor])


def test_the_last_entry_names_it(cluster: KazooClient, reader: ZnodeReader, bookie: FakeBookie) -> None:
    cluster.create(f"/{_CURSOR}", wire.cursor(8), makepath=True)
    write_cursor_ledger(cluster, bookie, 8)
    assert find(reader, 8) == [ScannedReference(31, _CURSOR, "compacted_ledger")]


def test_a_cursor_ledger_without_entries_is_a_problem(
    cluster: KazooClient, reader: ZnodeReader, bookie: FakeBookie
) -> None:
    """The broker writes an entry before it names the ledger: whoever has none has lost it."""
    cluster.create(f"/{_CURSOR}", wire.cursor(8), makepath=True)
    bookie.answer = answer_with_code(1)
    write_cursor_ledger(cluster, bookie, 8)
    (problem,) = find(reader, 8)
    assert isinstance(problem, ScanProblem)


def test_an_old_cursor_ledger_that_still_exists_is_not_believed(
    cluster: KazooClient, reader: ZnodeReader, bookie: FakeBookie
) -> None:
    cluster.create(f"/{_CURSOR}", wire.cursor(-1, compacted=32), makepath=True)
    write_cursor_ledger(cluster, bookie, 8)
    assert find(reader, 8) == [ScannedReference(32, _CURSOR, "compacted_ledger")]


def test_a_replaced_cursor_ledger_is_followed(cluster: KazooClient, reader: ZnodeReader, bookie: FakeBookie) -> None:
    cluster.create(f"/{_CURSOR}", wire.cursor(8), makepath=True)
    write_cursor_ledger(cluster, bookie, 8)
    assert find(reader, 7) == [ScannedReference(31, _CURSOR, "compacted_ledger")]


def test_a_cursor_that_was_closed_names_it_in_its_znode(cluster: KazooClient, reader: ZnodeReader) -> None:
    cluster.create(f"/{_CURSOR}", wire.cursor(-1, compacted=32), makepath=True)
    assert find(reader, 7) == [ScannedReference(32, _CURSOR, "compacted_ledger")]


def test_a_topic_that_was_deleted_meanwhile_names_none(reader: ZnodeReader) -> None:
    assert find(reader, 7) == []


def test_a_cursor_ledger_that_stays_away_is_a_problem(cluster: KazooClient, reader: ZnodeReader) -> None:
    cluster.create(f"/{_CURSOR}", wire.cursor(7), makepath=True)
    (problem,) = find(reader, 7)
    assert isinstance(problem, ScanProblem)


@pytest.mark.parametrize("payload", [b"\xff", wire.cursor_position(compacted=31)[:-1]])
def test_an_entry_that_cannot_be_read_is_a_problem(
    cluster: KazooClient, reader: ZnodeReader, bookie: FakeBookie, payload: bytes
) -> None:
    cluster.create(f"/{_CURSOR}", wire.cursor(8), makepath=True)
    bookie.answer = answer_with(seal_entry(8, 5, payload))
    write_cursor_ledger(cluster, bookie, 8)
    (problem,) = find(reader, 8)
    assert isinstance(problem, ScanProblem)
    assert "ledger 8" in problem.reason


def test_a_bookie_that_is_away_is_a_problem(cluster: KazooClient, reader: ZnodeReader, bookie: FakeBookie) -> None:
    cluster.create(f"/{_CURSOR}", wire.cursor(8), makepath=True)
    write_cursor_ledger(cluster, bookie, 8)
    bookie.answer = answer_with_code(101)
    (problem,) = find(reader, 8)
    assert isinstance(problem, ScanProblem)


def test_all_entries_that_may_be_the_last_one_are_believed(
    cluster: KazooClient, reader: ZnodeReader, bookie: FakeBookie
) -> None:
    """Entry 5 may not be acknowledged. Then the compacted ledger is still that of entry 4."""
    cluster.create(f"/{_CURSOR}", wire.cursor(8), makepath=True)
    bookie.answer = answer_entries({4: wire.cursor_position(compacted=31), 5: wire.cursor_position(compacted=32)})
    write_cursor_ledger(cluster, bookie, 8)
    assert set(find(reader, 8)) == {
        ScannedReference(31, _CURSOR, "compacted_ledger", can_be_absent=True),
        ScannedReference(32, _CURSOR, "compacted_ledger", can_be_absent=True),
    }


def test_a_first_compaction_that_may_not_be_acknowledged_is_believed(
    cluster: KazooClient, reader: ZnodeReader, bookie: FakeBookie
) -> None:
    cluster.create(f"/{_CURSOR}", wire.cursor(8), makepath=True)
    bookie.answer = answer_entries({4: wire.cursor_position(), 5: wire.cursor_position(compacted=32)})
    write_cursor_ledger(cluster, bookie, 8)
    assert find(reader, 8) == [ScannedReference(32, _CURSOR, "compacted_ledger", can_be_absent=True)]


def test_many_cursors_are_looked_up_in_batches(cluster: KazooClient, reader: ZnodeReader, bookie: FakeBookie) -> None:
    """Other facts pass. Each cursor has a cursor ledger and a compacted ledger of its own."""
    write_cursor_ledger(cluster, bookie, 0)
    metadata, _ = cluster.get(f"/ledgers/{format_ledger_path(0)}")
    cursors = [CompactionCursor(f"managed-ledgers/t/ns/persistent/{each}/__compaction", each) for each in range(1, 451)]
    transaction = cluster.transaction()
    for cursor in cursors:
        cluster.ensure_path(f"/{cursor.path.rpartition('/')[0]}")
        transaction.create(f"/{cursor.path}", wire.cursor(cursor.cursor_ledger_id))
        transaction.create(f"/ledgers/{format_ledger_path(cursor.cursor_ledger_id)}", metadata)
    transaction.commit()

    def answer(ledger_id: int, entry_id: int) -> bytes:
        return answer_entries({0: wire.cursor_position(compacted=1_000 + ledger_id)})(ledger_id, entry_id)

    bookie.answer = answer
    other = ScannedReference(3, "managed-ledgers/t/ns/persistent/x", "ledgers")
    facts = list(resolve_compaction_cursors(reader, BookieDirectory(reader, "ledgers"), "ledgers", [*cursors, other]))
    expected = {ScannedReference(1_000 + each, cursors[each - 1].path, "compacted_ledger") for each in range(1, 451)}
    assert set(facts) == {*expected, other}
    assert len(facts) == 451
    assert len(bookie.connections) <= 3 * 16
