"""Logs of coordinators on a fake bookie, with the entries of a real one."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from kazoo.client import KazooClient

from infra.pulsar import transaction_log_reads
from infra.pulsar.bookie_reads import BookieDirectory
from infra.pulsar.transaction_log_reads import read_log_payloads, read_logged_transactions
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import PreconditionFailed, StoreUnavailable
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import format_ledger_path
from tests.infra.pulsar.fake_admin import RECORDED
from tests.infra.pulsar.fake_bookie import FakeBookie, answer_entries, answer_with_code, run_bookie
from tests.logstore.pulsar import wire

pytestmark = pytest.mark.external_service

_PAYLOADS = [bytes.fromhex(entry) for entry in RECORDED["log"]]
_HALF = len(_PAYLOADS) // 2
_CLOSED, _OPEN = 40, 41


@contextmanager
def serve_log(
    cluster: KazooClient, *, coordinator: int = 0, bookies: tuple[str, ...] = ("bk0",)
) -> Iterator[FakeBookie]:
    """Write the log of a coordinator: a closed ledger, and an open one. All bookies have one address."""
    entries: Mapping[int, Mapping[int, bytes]] = {
        _CLOSED: dict(enumerate(_PAYLOADS[:_HALF])),
        _OPEN: dict(enumerate(_PAYLOADS[_HALF:])),
    }

    def answer(ledger_id: int, entry_id: int) -> bytes:
        known = entries.get(ledger_id)
        return answer_entries(known)(ledger_id, entry_id) if known else answer_with_code(1)(ledger_id, entry_id)

    with run_bookie(answer) as bookie:
        rpc = wire.encode_message((1, "bookie"), (2, bookie.address.port), (3, bookie.address.host), (4, "bookie-rpc"))
        log = wire.managed_ledger([_CLOSED, _OPEN])
        closed = wire.ledger_metadata(bookies=bookies, last_entry=_HALF - 1)
        for path, value in {
            "ledgers/available/bk0": wire.encode_message((6, rpc)),
            f"managed-ledgers/pulsar/system/persistent/__transaction_log_{coordinator}": log,
            f"ledgers/{format_ledger_path(_CLOSED)}": closed,
            f"ledgers/{format_ledger_path(_OPEN)}": wire.ledger_metadata(state=1, bookies=bookies),
        }.items():
            cluster.create(f"/{path}", value, makepath=True)
        yield bookie


def _read(reader: ZnodeReader) -> list[bytes] | None:
    return read_log_payloads(reader, BookieDirectory(reader, "ledgers"), "ledgers", 0)


def test_a_log_is_read_to_the_end_of_its_open_ledger(cluster: KazooClient, reader: ZnodeReader) -> None:
    with serve_log(cluster):
        assert _read(reader) == _PAYLOADS
        transactions = read_logged_transactions(reader, BookieDirectory(reader, "ledgers"), "ledgers", 0)
    assert sorted(transactions or ()) == [0, 1, 2]


def test_a_coordinator_may_have_no_log(reader: ZnodeReader) -> None:
    assert read_logged_transactions(reader, BookieDirectory(reader, "ledgers"), "ledgers", 0) is None


def test_a_log_whose_newest_ledger_is_empty_is_whole(cluster: KazooClient, reader: ZnodeReader) -> None:
    with serve_log(cluster):
        cluster.set(
            "/managed-ledgers/pulsar/system/persistent/__transaction_log_0", wire.managed_ledger([_CLOSED, _OPEN, 42])
        )
        cluster.create(f"/ledgers/{format_ledger_path(42)}", wire.ledger_metadata(state=1))
        assert _read(reader) == _PAYLOADS


def test_the_next_bookie_is_asked_for_an_entry(cluster: KazooClient, reader: ZnodeReader) -> None:
    """The bookie `bk9` is not registered. Every second entry is asked from it first."""
    with serve_log(cluster, bookies=("bk0", "bk9")):
        cluster.set(
            f"/ledgers/{format_ledger_path(_OPEN)}",
            wire.ledger_metadata(bookies=("bk9", "bk0"), last_entry=len(_PAYLOADS) - _HALF - 1),
        )
        assert _read(reader) == _PAYLOADS


def test_without_enough_bookies_the_log_is_not_read(cluster: KazooClient, reader: ZnodeReader) -> None:
    with serve_log(cluster):
        cluster.delete("/ledgers/available/bk0")
        with pytest.raises(
            StoreUnavailable, match="ledger 41: too few bookies answer: bookie bk0: it is not registered"
        ):
            _read(reader)
        cluster.set(f"/ledgers/{format_ledger_path(_OPEN)}", wire.ledger_metadata(last_entry=0))
        with pytest.raises(StoreUnavailable, match="ledger 40: no bookie returned entry 0"):
            _read(reader)


def test_a_hole_in_the_log_is_an_error(cluster: KazooClient, reader: ZnodeReader) -> None:
    with serve_log(cluster):
        longer = wire.ledger_metadata(last_entry=_HALF)
        cluster.set(f"/ledgers/{format_ledger_path(_CLOSED)}", longer)
        with pytest.raises(StoreUnavailable, match=f"ledger 40: no bookie returned entry {_HALF}"):
            _read(reader)
        cluster.delete(f"/ledgers/{format_ledger_path(_CLOSED)}")
        with pytest.raises(UnreadableMetadata, match="ledger 40: expected an existing one, found no such znode"):
            _read(reader)


def test_a_bookie_without_the_open_ledger_is_a_failure(cluster: KazooClient, reader: ZnodeReader) -> None:
    """The bookie `bk1` has lost its disk, and may be the only one that had the newest entry."""
    with serve_log(cluster) as bookie, run_bookie(answer_with_code(1)) as empty:
        cluster.set(
            f"/ledgers/{format_ledger_path(_OPEN)}",
            wire.ledger_metadata(state=1, bookies=("bk0", f"127.0.0.1:{empty.address.port}")),
        )
        with pytest.raises(StoreUnavailable, match=r"ledger 41: too few bookies answer: .* no entry of the ledger"):
            _read(reader)
        assert bookie.requests


def test_only_the_newest_ledger_of_a_log_can_be_open_and_empty(cluster: KazooClient, reader: ZnodeReader) -> None:
    with serve_log(cluster):
        log = wire.managed_ledger([_CLOSED, 42, _OPEN])
        cluster.set("/managed-ledgers/pulsar/system/persistent/__transaction_log_0", log)
        cluster.create(f"/ledgers/{format_ledger_path(42)}", wire.ledger_metadata(state=1))
        with pytest.raises(StoreUnavailable, match="ledger 42: too few bookies answer"):
            _read(reader)


def test_a_log_that_ends_before_its_last_known_entry_is_not_read(cluster: KazooClient, reader: ZnodeReader) -> None:
    """The bookies of the open ledger changed behind entry 98, so that entry 98 was acknowledged."""
    with serve_log(cluster):
        metadata = wire.ledger_metadata(state=1, first_entry=99)
        cluster.set(f"/ledgers/{format_ledger_path(_OPEN)}", metadata)
        with pytest.raises(StoreUnavailable, match="ledger 41: expected entry 98 or a later one"):
            _read(reader)


@pytest.mark.parametrize(
    ("limit", "unit", "length"),
    [("_MAX_ENTRIES", "entries", len(_PAYLOADS)), ("_MAX_BYTES", "bytes", sum(map(len, _PAYLOADS)))],
)
def test_a_log_has_a_longest_length(
    *, limit: str, unit: str, length: int, cluster: KazooClient, reader: ZnodeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry cannot help."""
    monkeypatch.setattr(transaction_log_reads, limit, length)
    with serve_log(cluster):
        assert _read(reader) == _PAYLOADS
        monkeypatch.setattr(transaction_log_reads, limit, length - 1)
        with pytest.raises(PreconditionFailed, match=f"log of coordinator 0: expected at most {length - 1:,} {unit}"):
            _read(reader)
